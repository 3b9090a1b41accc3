// tma.cuh -- the copy unit of an SM (sm_90 and later): whole chunks by one instruction.
//
// One thread asks, the unit moves: from global memory into shared memory, from there into
// global memory, ours or a peer's, by plain copy or adding to what is there. Loads say
// that they are complete at a barrier in shared memory; stores are counted in groups of
// the thread that asked.
//
// The unit sees memory through a proxy of its own (PTX: the async proxy). Whoever wrote
// plainly what it reads next, or reads plainly what it wrote, puts `between_proxies` in
// between, besides what orders threads and ranks. `all_stored` waits until stores are
// complete, and visible to the thread that asked; `all_but_read` only until shared memory
// may be used again, and says nothing about the destination.
#pragma once

#include "memory.cuh"

namespace stretto {

// The block's dynamic shared memory.
__device__ __forceinline__ u32 shared_memory() {
  extern __shared__ __align__(128) u8 bytes[];
  return static_cast<u32>(__cvta_generic_to_shared(bytes));
}

__device__ __forceinline__ void store_shared(u32 at, Vec v) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(v.x), "r"(v.y),
               "r"(v.z), "r"(v.w)
               : "memory");
}

__device__ __forceinline__ void between_proxies() {
  asm volatile("fence.proxy.async;" ::: "memory");
}

// The same, for shared memory alone.
__device__ __forceinline__ void between_proxies_here() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// A barrier that one load at a time completes.
__device__ __forceinline__ void make_load_barrier(u32 at) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(at) : "memory");
}

// Whether the load that is the `turn`-th user of a barrier is complete.
__device__ __forceinline__ bool is_loaded(u32 at, u32 turn) {
  u32 done;
  asm volatile(
      "{\n .reg .pred p;\n"
      " mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      " selp.u32 %0, 1, 0, p;\n}"
      : "=r"(done)
      : "r"(at), "r"(turn & 1)
      : "memory");
  return done != 0;
}

// Chunks begin and end at multiples of 16 bytes.
__device__ __forceinline__ void load_chunk(u32 shared, u64 from, u32 nbytes, u32 loaded) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(loaded),
               "r"(nbytes)
               : "memory");
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
      " [%0], [%1], %2, [%3];" ::"r"(shared),
      "l"(from), "r"(nbytes), "r"(loaded)
      : "memory");
}

__device__ __forceinline__ void store_chunk(u64 to, u32 shared, u32 nbytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to),
               "r"(shared), "r"(nbytes)
               : "memory");
}

// Add to what is there, element by element, each atomically, in any order: a chunk, or
// one element given by its bits.
template <class E>
__device__ __forceinline__ void add_chunk(u64 to, u32 shared, u32 nbytes);
template <class E>
__device__ __forceinline__ void add_element(u64 to, u64 bits);
#define STRETTO_ADD(element, type, constraint, word)                                   \
  template <>                                                                          \
  __device__ __forceinline__ void add_chunk<element>(u64 to, u32 shared, u32 nbytes) { \
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add." type        \
                 " [%0], [%1], %2;" ::"l"(to),                                         \
                 "r"(shared), "r"(nbytes)                                              \
                 : "memory");                                                          \
  }                                                                                    \
  template <>                                                                          \
  __device__ __forceinline__ void add_element<element>(u64 to, u64 bits) {             \
    asm volatile("red.relaxed.sys.global.add." type " [%0], %1;" ::"l"(to),            \
                 constraint(word(bits))                                                \
                 : "memory");                                                          \
  }
STRETTO_ADD(struct BFloat16, "noftz.bf16", "h", static_cast<u16>)
STRETTO_ADD(struct Float16, "noftz.f16", "h", static_cast<u16>)
STRETTO_ADD(struct Float32, "f32", "f", __uint_as_float)
STRETTO_ADD(struct Float64, "f64", "d", __longlong_as_double)
STRETTO_ADD(struct Int32, "s32", "r", static_cast<u32>)
STRETTO_ADD(struct UInt32, "u32", "r", static_cast<u32>)
STRETTO_ADD(struct UInt64, "u64", "l", static_cast<u64>)
#undef STRETTO_ADD

// Stores since the last call are a group.
__device__ __forceinline__ void end_group() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// All but the last GROUPS have read their shared memory.
template <u32 GROUPS>
__device__ __forceinline__ void all_but_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(GROUPS) : "memory");
}

__device__ __forceinline__ void all_stored() {
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

}  // namespace stretto
