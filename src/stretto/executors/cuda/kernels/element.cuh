// element.cuh -- element types: how a vector's elements are widened and rounded.
//
// `Wide` is what elements are combined in: float for 8- and 16-bit floats, 32 bits for
// small integers (sums wrap when they are cut off again), else the type itself. `pack`
// rounds to nearest even. Nothing here is contracted: kernels are built without fmad.
#pragma once

#include "memory.cuh"

namespace stretto {

__device__ __forceinline__ float as_float(u32 bits) { return __uint_as_float(bits); }
__device__ __forceinline__ u32 as_bits(float f) { return __float_as_uint(f); }

struct Complex64 {
  float re, im;
};
struct Complex128 {
  double re, im;
};

// Types whose elements are whole 32-bit words or more: a vector is an array of them.
template <class T, int GRAIN>
struct Plain {
  using Wide = T;
  static constexpr u32 size = sizeof(T), grain = GRAIN, lanes = 16 / sizeof(T);
  __device__ static void unpack(const Vec& v, T (&out)[lanes]) {
    memcpy(out, &v, 16);
  }
  __device__ static Vec pack(const T (&in)[lanes]) {
    Vec v;
    memcpy(&v, in, 16);
    return v;
  }
};
struct Float32 : Plain<float, 4> {};
struct Float64 : Plain<double, 8> {};
struct Complex64s : Plain<Complex64, 4> {};
struct Complex128s : Plain<Complex128, 8> {};
struct Int32 : Plain<int, 4> {};
struct UInt32 : Plain<u32, 4> {};
struct Int64 : Plain<i64, 8> {};
struct UInt64 : Plain<u64, 8> {};

// Types of which a word holds several: `W` says how to take one out and put it back.
template <class W>
struct Packed {
  using Wide = typename W::Wide;
  static constexpr u32 size = W::bits / 8, grain = size, lanes = 16 / size;
  static constexpr u32 per_word = 32 / W::bits;
  __device__ static void unpack(const Vec& v, Wide (&out)[lanes]) {
    const u32 words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (u32 k = 0; k < lanes; ++k) {
      const u32 raw = words[k / per_word] >> (W::bits * (k % per_word));
      out[k] = W::widen(raw & ((1u << W::bits) - 1));
    }
  }
  __device__ static Vec pack(const Wide (&in)[lanes]) {
    u32 words[4];
#pragma unroll
    for (u32 w = 0; w < 4; ++w) words[w] = W::word(in + w * per_word);
    return {words[0], words[1], words[2], words[3]};
  }
};

// Four (or two) elements to a word, one after the other.
template <class W, class Wide>
__device__ __forceinline__ u32 join(const Wide* in) {
  u32 word = 0;
#pragma unroll
  for (u32 k = 0; k < 32 / W::bits; ++k) {
    word |= (W::narrow(in[k]) & ((1u << W::bits) - 1)) << (W::bits * k);
  }
  return word;
}

template <class T, class W, int BITS>
struct SmallInt {
  using Wide = W;
  static constexpr u32 bits = BITS;
  __device__ static Wide widen(u32 raw) { return static_cast<T>(raw); }
  __device__ static u32 narrow(Wide v) { return static_cast<u32>(v); }
  __device__ static u32 word(const Wide* in) { return join<SmallInt>(in); }
};
struct Int8 : Packed<SmallInt<signed char, int, 8>> {};
struct UInt8 : Packed<SmallInt<u8, u32, 8>> {};
struct Int16 : Packed<SmallInt<short, int, 16>> {};
struct UInt16 : Packed<SmallInt<u16, u32, 16>> {};

// A truth value: any byte but 0 is true, and is written as 1.
struct Truth {
  using Wide = bool;
  static constexpr u32 bits = 8;
  __device__ static bool widen(u32 raw) { return raw != 0; }
  __device__ static u32 narrow(bool v) { return v; }
  __device__ static u32 word(const bool* in) { return join<Truth>(in); }
};
struct Bool : Packed<Truth> {};

struct Half {
  using Wide = float;
  static constexpr u32 bits = 16;
  __device__ static float widen(u32 raw) {
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(static_cast<u16>(raw)));
    return f;
  }
  __device__ static u32 word(const float* in) {
    u32 w;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(w) : "f"(in[1]), "f"(in[0]));
    return w;
  }
};
struct Float16 : Packed<Half> {};

struct Brain {
  using Wide = float;
  static constexpr u32 bits = 16;
  __device__ static float widen(u32 raw) { return as_float(raw << 16); }
  __device__ static u32 word(const float* in) {
    u32 w;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(w) : "f"(in[1]), "f"(in[0]));
    return w;
  }
};
struct BFloat16 : Packed<Brain> {};

// 8-bit floats of M bits of mantissa. Rounding happens in the bits of a float: adding
// half of the last kept place carries into the exponent as it should; below the least
// normal number, adding a float whose last place is theirs lets the adder round.
template <int M, int BIAS>
__device__ __forceinline__ u32 round_to_8(u32 magnitude) {
  constexpr u32 shift = 23 - M;
  constexpr u32 least = (128 - BIAS) << 23;
  constexpr u32 magic = (128 - BIAS + shift) << 23;
  if (magnitude < least) {
    return as_bits(as_float(magnitude) + as_float(magic)) - magic;
  }
  const u32 odd = (magnitude >> shift) & 1;
  const u32 rebias = static_cast<u32>(127 - BIAS) << 23;
  return (magnitude - rebias + (1u << (shift - 1)) - 1 + odd) >> shift;
}

// Two floats to two bytes, by the processor, which has no infinity and one NaN.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
#define STRETTO_CVT8(type, low, high, made) \
  asm("cvt.rn.satfinite." type "x2.f32 %0, %1, %2;" : "=h"(made) : "f"(high), "f"(low))
#endif

// e4m3fn: no infinity; what is too large becomes the largest, as in torch (2.13).
struct E4M3 {
  using Wide = float;
  static constexpr u32 bits = 8;
  __device__ static float widen(u32 raw) {
    const float scaled = as_float((raw & 0x7f) << 20) * as_float(247u << 23);
    const float value = (raw & 0x7f) == 0x7f ? as_float(0x7fc00000u) : scaled;
    return as_float(as_bits(value) | (raw & 0x80) << 24);
  }
  __device__ static u32 narrow(float f) {
    const u32 magnitude = as_bits(f) & 0x7fffffffu, sign = as_bits(f) >> 31 << 7;
    if (magnitude > 0x7f800000u) return sign | 0x7f;
    constexpr u32 overflow = 0x43e80000u;  // 464, which still rounds to 448
    return sign | (magnitude > overflow ? 0x7e : round_to_8<3, 7>(magnitude));
  }
  __device__ static u32 word(const float* in) {
#ifdef STRETTO_CVT8
    u16 made[2];
    STRETTO_CVT8("e4m3", in[0], in[1], made[0]);
    STRETTO_CVT8("e4m3", in[2], in[3], made[1]);
    u32 all = made[0] | static_cast<u32>(made[1]) << 16;
#pragma unroll
    for (u32 k = 0; k < 4; ++k) {
      if (in[k] != in[k]) all |= as_bits(in[k]) >> 31 << (8 * k + 7);
    }
    return all;
#else
    return join<E4M3>(in);
#endif
  }
};
struct Float8E4M3 : Packed<E4M3> {};

// e5m2: the upper byte of a half.
struct E5M2 {
  using Wide = float;
  static constexpr u32 bits = 8;
  __device__ static float widen(u32 raw) { return Half::widen(raw << 8); }
  __device__ static u32 narrow(float f) {
    const u32 magnitude = as_bits(f) & 0x7fffffffu, sign = as_bits(f) >> 31 << 7;
    if (magnitude > 0x7f800000u) return sign | 0x7f;
    constexpr u32 overflow = 0x47800000u;  // 65536
    return sign | (magnitude >= overflow ? 0x7c : round_to_8<2, 15>(magnitude));
  }
  __device__ static u32 word(const float* in) {
#ifdef STRETTO_CVT8
    u16 made[2];
    STRETTO_CVT8("e5m2", in[0], in[1], made[0]);
    STRETTO_CVT8("e5m2", in[2], in[3], made[1]);
    u32 all = made[0] | static_cast<u32>(made[1]) << 16;
#pragma unroll
    for (u32 k = 0; k < 4; ++k) {
      const u32 magnitude = as_bits(in[k]) & 0x7fffffffu;
      const bool nan = magnitude > 0x7f800000u, infinite = magnitude >= 0x47700000u;
      all |= (nan ? as_bits(in[k]) >> 31 : 0) << (8 * k + 7);
      all += (infinite && !nan ? 1u : 0) << (8 * k);  // 61440 is the first of them
    }
    return all;
#else
    return join<E5M2>(in);
#endif
  }
};
struct Float8E5M2 : Packed<E5M2> {};
#undef STRETTO_CVT8

}  // namespace stretto
