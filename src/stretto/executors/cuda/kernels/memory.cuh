// memory.cuh -- how memory that somebody else touches is accessed.
//
// Whatever a peer reads or writes is accessed by relaxed, release or acquire operations
// of system scope, and by nothing else: a plain or non-coherent load may be served from
// an L1 that no peer can invalidate. A 16-byte access is four words that arrive in any
// order, each whole: nothing here relies on more (see docs/memory-model.md).
//
//   relaxed   single words and vectors; orders nothing
//   release   everything before it, of this thread and of whoever it has synchronised
//             with (a barrier of the block counts), is visible to who acquires it
//   acquire   the other end
//
// None of them lets the compiler move another volatile access across; `release`,
// `acquire` and `fence` hold back plain accesses too.
#pragma once

namespace stretto {

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i64 = long long;
static_assert(sizeof(void*) == 8 && sizeof(u64) == 8, "64-bit addresses");

// 16 bytes: what a thread moves at once.
struct alignas(16) Vec {
  u32 x, y, z, w;
};

__device__ __forceinline__ Vec load_relaxed(const Vec* p) {
  Vec v;
  asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}

__device__ __forceinline__ void store_relaxed(Vec* p, Vec v) {
  asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p),
               "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w));
}

// What no peer touches during a call. (Spelt out so that it is known to be global memory,
// and stays in order with everything else here.)
__device__ __forceinline__ Vec load_plain(const Vec* p) {
  Vec v;
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}

__device__ __forceinline__ void store_plain(Vec* p, Vec v) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(v.x), "r"(v.y),
               "r"(v.z), "r"(v.w));
}

// Words of 1 to 8 bytes, for what is not aligned to 16.
__device__ __forceinline__ u64 load_relaxed_word(const u64* p) {
  u64 v;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p));
  return v;
}

__device__ __forceinline__ u32 load_relaxed_word(const u32* p) {
  u32 v;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p));
  return v;
}

__device__ __forceinline__ u16 load_relaxed_word(const u16* p) {
  u16 v;
  asm volatile("ld.relaxed.sys.global.u16 %0, [%1];" : "=h"(v) : "l"(p));
  return v;
}

__device__ __forceinline__ u8 load_relaxed_word(const u8* p) {
  u32 v;
  asm volatile("ld.relaxed.sys.global.u8 %0, [%1];" : "=r"(v) : "l"(p));
  return static_cast<u8>(v);
}

__device__ __forceinline__ void store_relaxed_word(u64* p, u64 v) {
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v));
}

__device__ __forceinline__ void store_relaxed_word(u32* p, u32 v) {
  asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v));
}

__device__ __forceinline__ void store_relaxed_word(u16* p, u16 v) {
  asm volatile("st.relaxed.sys.global.u16 [%0], %1;" ::"l"(p), "h"(v));
}

__device__ __forceinline__ void store_relaxed_word(u8* p, u8 v) {
  asm volatile("st.relaxed.sys.global.u8 [%0], %1;" ::"l"(p),
               "r"(static_cast<u32>(v)));
}

__device__ __forceinline__ void store_release(u64* p, u64 v) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}

__device__ __forceinline__ u64 load_acquire(const u64* p) {
  u64 v;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
  return v;
}

// Makes a relaxed poll that has seen what it waited for an acquire, and a relaxed store
// that follows a release.
__device__ __forceinline__ void fence() {
  asm volatile("fence.acq_rel.sys;" ::: "memory");
}

// The next number of a counter that blocks of this GPU share.
__device__ __forceinline__ u64 take_number(u64* p) {
  u64 v;
  asm volatile("atom.relaxed.gpu.global.add.u64 %0, [%1], 1;" : "=l"(v) : "l"(p));
  return v;
}

// The device's clock in nanoseconds; the same for all its SMs.
__device__ __forceinline__ u64 clock_ns() {
  u64 t;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
  return t;
}

}  // namespace stretto
