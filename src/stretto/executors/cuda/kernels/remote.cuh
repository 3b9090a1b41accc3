// remote.cuh -- accesses that only channels need: pairs, and additions in a peer's memory.
//
//   pair    two 64-bit words in one instruction; each arrives whole, in either order: PTX
//           promises 8 bytes and no more. `load_pair_acquire`: and what was released
//           before they were stored
//   add     a relaxed addition by whoever owns the memory (system scope): no value comes
//           back; additions of several ranks come in any order, and floats round so
#pragma once

#include "memory.cuh"

namespace stretto {

struct alignas(16) Pair {
  u64 low, high;
};
// Two 16-bit floats in a word, added at once.
struct Float16x2 {
  u32 bits;
};
struct BFloat16x2 {
  u32 bits;
};

__device__ __forceinline__ Pair load_pair(const Pair* p) {
  Pair v;
  asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];"
               : "=l"(v.low), "=l"(v.high)
               : "l"(p));
  return v;
}

__device__ __forceinline__ Pair load_pair_acquire(const Pair* p) {
  Pair v;
  asm volatile("ld.acquire.sys.global.v2.u64 {%0, %1}, [%2];"
               : "=l"(v.low), "=l"(v.high)
               : "l"(p)
               : "memory");
  return v;
}

__device__ __forceinline__ void store_pair(Pair* p, Pair v) {
  asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(p), "l"(v.low),
               "l"(v.high));
}

__device__ __forceinline__ void add_remote(u32* p, u32 v) {
  asm volatile("red.relaxed.sys.global.add.u32 [%0], %1;" ::"l"(p), "r"(v));
}
__device__ __forceinline__ void add_remote(u64* p, u64 v) {
  asm volatile("red.relaxed.sys.global.add.u64 [%0], %1;" ::"l"(p), "l"(v));
}
__device__ __forceinline__ void add_remote(float* p, float v) {
  asm volatile("red.relaxed.sys.global.add.f32 [%0], %1;" ::"l"(p), "f"(v));
}
__device__ __forceinline__ void add_remote(double* p, double v) {
  asm volatile("red.relaxed.sys.global.add.f64 [%0], %1;" ::"l"(p), "d"(v));
}
__device__ __forceinline__ void add_remote(Float16x2* p, Float16x2 v) {
  asm volatile("red.relaxed.sys.global.add.noftz.f16x2 [%0], %1;" ::"l"(p), "r"(v.bits));
}
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
__device__ __forceinline__ void add_remote(BFloat16x2* p, BFloat16x2 v) {
  asm volatile("red.relaxed.sys.global.add.noftz.bf16x2 [%0], %1;" ::"l"(p),
               "r"(v.bits));
}
#endif

}  // namespace stretto
