// cells.cuh -- cells of arrays of any type: what 16 bytes of the result are elsewhere.
//
// A cell is G elements, loaded and stored as one where it can be, else one by one. Its
// values are float32, rounded to nearest even when they are stored (element.cuh).
#pragma once

#include "element.cuh"
#include "vector.cuh"

namespace stretto {

// G elements of type E, as they are stored.
template <class E, u32 G>
struct Words {
  static constexpr u32 nbytes = G * E::size, count = nbytes / 4;
  u32 of[count];

  // From memory that is ours alone, or (SHARED) that a peer may have written.
  template <bool SHARED = false>
  __device__ __forceinline__ void load(u64 base, u64 element, u32 n, bool whole) {
    const u64 address = base + element * E::size;
    if (whole) {
      if constexpr (nbytes >= 16) {
#pragma unroll
        for (u32 i = 0; i < nbytes / 16; ++i) {
          const Vec* p = reinterpret_cast<const Vec*>(address) + i;
          const Vec v = SHARED ? load_relaxed(p) : *p;
          of[4 * i] = v.x, of[4 * i + 1] = v.y;
          of[4 * i + 2] = v.z, of[4 * i + 3] = v.w;
        }
      } else if constexpr (nbytes == 8) {
        const u64 v = *reinterpret_cast<const u64*>(address);
        of[0] = static_cast<u32>(v), of[1] = static_cast<u32>(v >> 32);
      } else {
        of[0] = *reinterpret_cast<const u32*>(address);
      }
      return;
    }
    using Word = typename WordOf<E::size>::type;
    const Word* p = reinterpret_cast<const Word*>(address);
#pragma unroll
    for (u32 i = 0; i < count; ++i) of[i] = 0;
#pragma unroll
    for (u32 k = 0; k < G; ++k) {
      if (k < n) {
        const u32 word = SHARED ? load_relaxed_word(p + k) : p[k];
        of[k * E::size / 4] |= word << (8 * (k * E::size % 4));
      }
    }
  }

  __device__ __forceinline__ void store(u64 base, u64 element, u32 n,
                                        bool whole) const {
    const u64 address = base + element * E::size;
    if (whole) {
      if constexpr (nbytes >= 16) {
#pragma unroll
        for (u32 i = 0; i < nbytes / 16; ++i) {
          reinterpret_cast<Vec*>(address)[i] = {of[4 * i], of[4 * i + 1], of[4 * i + 2],
                                                of[4 * i + 3]};
        }
      } else if constexpr (nbytes == 8) {
        *reinterpret_cast<u64*>(address) = of[0] | static_cast<u64>(of[1]) << 32;
      } else {
        *reinterpret_cast<u32*>(address) = of[0];
      }
      return;
    }
    using Word = typename WordOf<E::size>::type;
    Word* p = reinterpret_cast<Word*>(address);
#pragma unroll
    for (u32 k = 0; k < G; ++k) {
      if (k < n) {
        p[k] = static_cast<Word>(of[k * E::size / 4] >> (8 * (k * E::size % 4)));
      }
    }
  }

  // As floats, 16 bytes of them after the other.
  __device__ __forceinline__ void widen(float (&out)[G]) const {
#pragma unroll
    for (u32 first = 0; first < G; first += E::lanes) {
      const u32 at = first * E::size / 4;
      float some[E::lanes];
      E::unpack({word(at), word(at + 1), word(at + 2), word(at + 3)}, some);
#pragma unroll
      for (u32 k = 0; k < E::lanes && first + k < G; ++k) out[first + k] = some[k];
    }
  }

  __device__ __forceinline__ static Words rounded(const float (&in)[G]) {
    Words made;
#pragma unroll
    for (u32 first = 0; first < G; first += E::lanes) {
      float some[E::lanes];
#pragma unroll
      for (u32 k = 0; k < E::lanes; ++k) some[k] = first + k < G ? in[first + k] : 0.0f;
      const Vec v = E::pack(some);
      const u32 words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
      for (u32 i = 0; i < 4; ++i) {
        const u32 at = first * E::size / 4 + i;
        if (at < count) made.of[at] = words[i];
      }
    }
    return made;
  }

 private:
  __device__ u32 word(u32 i) const { return i < count ? of[i] : 0; }
};

// One element.
template <class E>
__device__ __forceinline__ float load_one(u64 base, u64 element) {
  constexpr u32 G = 4 / E::size;
  Words<E, G> words;
  words.load(base, element, 1, false);
  float of[G];
  words.widen(of);
  return of[0];
}

template <class E>
__device__ __forceinline__ void store_one(u64 base, u64 element, float value) {
  constexpr u32 G = 4 / E::size;
  float of[G] = {value};
  Words<E, G>::rounded(of).store(base, element, 1, false);
}

// To an element type and back.
template <class E>
__device__ __forceinline__ float round_as(float value) {
  constexpr u32 G = 4 / E::size;
  float of[G] = {value};
  Words<E, G>::rounded(of).widen(of);
  return of[0];
}

}  // namespace stretto
