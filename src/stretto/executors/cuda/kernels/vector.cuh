// vector.cuh -- plain data: the caller's arrays and staging, by vectors.
//
// `Caller` is input or output, of any alignment and length: whole vectors where it is
// aligned to 16 bytes, words of the element's grain otherwise and for the last cell.
// `Staged` is a unit of staging: always aligned, and padded, so only whole vectors.
// SHARED memory is touched by peers during the call: relaxed accesses, system scope.
// What orders them is a signal and a wait (flag.cuh); without these they promise nothing.
#pragma once

#include "tile.cuh"

namespace stretto {

template <u32 BYTES>
struct WordOf;
template <>
struct WordOf<1> {
  using type = u8;
};
template <>
struct WordOf<2> {
  using type = u16;
};
template <>
struct WordOf<4> {
  using type = u32;
};
template <>
struct WordOf<8> {
  using type = u64;
};

// A whole cell.
template <bool SHARED>
__device__ __forceinline__ Vec load_cell(u64 address) {
  const Vec* p = reinterpret_cast<const Vec*>(address);
  return SHARED ? load_relaxed(p) : load_plain(p);
}
template <bool SHARED>
__device__ __forceinline__ void store_cell(u64 address, Vec v) {
  Vec* p = reinterpret_cast<Vec*>(address);
  if (SHARED) {
    store_relaxed(p, v);
  } else {
    store_plain(p, v);
  }
}

// Up to 16 bytes, word by word; what is missing is 0.
template <u32 GRAIN, bool SHARED>
__device__ __forceinline__ Vec load_words(u64 address, u32 nbytes) {
  using Word = typename WordOf<GRAIN>::type;
  const Word* p = reinterpret_cast<const Word*>(address);
  u64 half[2] = {0, 0};
#pragma unroll 1
  for (u32 k = 0; k * GRAIN < nbytes; ++k) {
    const u64 word = SHARED ? load_relaxed_word(p + k) : p[k];
    const u64 placed = word << (8 * (k * GRAIN % 8));
    half[0] |= k * GRAIN < 8 ? placed : 0;
    half[1] |= k * GRAIN < 8 ? 0 : placed;
  }
  return {static_cast<u32>(half[0]), static_cast<u32>(half[0] >> 32),
          static_cast<u32>(half[1]), static_cast<u32>(half[1] >> 32)};
}

template <u32 GRAIN, bool SHARED>
__device__ __forceinline__ void store_words(u64 address, Vec v, u32 nbytes) {
  using Word = typename WordOf<GRAIN>::type;
  Word* p = reinterpret_cast<Word*>(address);
  const u64 low = v.x | static_cast<u64>(v.y) << 32;
  const u64 high = v.z | static_cast<u64>(v.w) << 32;
#pragma unroll 1
  for (u32 k = 0; k * GRAIN < nbytes; ++k) {
    const u64 half = k * GRAIN < 8 ? low : high;
    const Word word = static_cast<Word>(half >> (8 * (k * GRAIN % 8)));
    if (SHARED) {
      store_relaxed_word(p + k, word);
    } else {
      p[k] = word;
    }
  }
}

// An operand of a move. `finished`: takes the final value; `worded`: may be moved by
// words, where it is not `aligned` or ends.
// `peek` loads; what is `polled` is peeked again until it is `seen`, and then `opened`;
// `done` is told when a value has been used.
// `put` stores; `close` is told when a call's stores are done (see packet.cuh).
template <u32 GRAIN, bool SHARED, bool OUTPUT>
struct Caller {
  u64 base;
  static constexpr bool finished = OUTPUT, polled = false, worded = true;
  static constexpr int peer = -1;

  __device__ bool aligned() const { return base % 16 == 0; }
  __device__ void shift(const Slice& s) { base += s.start; }
  __device__ Vec peek(u32 cell) const {
    return load_cell<SHARED>(base + cell * 16);
  }
  __device__ Vec peek_words(u32 cell, u32 nbytes) const {
    return load_words<GRAIN, SHARED>(base + cell * 16, nbytes);
  }
  __device__ u32 seen(Vec) const { return SEEN; }
  __device__ Vec opened(Vec v) const { return v; }
  __device__ void done(u32) const {}
  template <class Lane>
  __device__ bool escaped(const Lane&) const {
    return false;
  }
  template <class Lane>
  __device__ u32 put(Lane&, u32 cell, Vec v) const {
    store_cell<SHARED>(base + cell * 16, v);
    return SEEN;
  }
  template <class Lane>
  __device__ void put_words(Lane&, u32 cell, Vec v, u32 nbytes) const {
    store_words<GRAIN, SHARED>(base + cell * 16, v, nbytes);
  }
  template <class Lane>
  __device__ void close(Lane&, bool) const {}
};

// A unit of staging, ours or a peer's.
struct Staged {
  u64 base;
  static constexpr bool finished = false, polled = false, worded = false;
  static constexpr int peer = -1;

  __device__ bool aligned() const { return true; }
  __device__ void shift(const Slice&) {}
  __device__ Vec peek(u32 cell) const {
    return load_cell<true>(base + cell * 16);
  }
  __device__ u32 seen(Vec) const { return SEEN; }
  __device__ Vec opened(Vec v) const { return v; }
  __device__ void done(u32) const {}
  template <class Lane>
  __device__ bool escaped(const Lane&) const {
    return false;
  }
  template <class Lane>
  __device__ u32 put(Lane&, u32 cell, Vec v) const {
    store_cell<true>(base + cell * 16, v);
    return SEEN;
  }
  template <class Lane>
  __device__ void close(Lane&, bool) const {}
};

}  // namespace stretto
