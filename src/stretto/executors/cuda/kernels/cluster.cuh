// cluster.cuh -- blocks that share a row: words of each other's shared memory.
//
// Blocks of a cluster run at the same time, on one group of SMs. A word says by itself
// that it has come: its upper half is the number of the exchange. It is told to every
// block of the cluster, and each looks at its own memory only.
//
// Nobody writes to a block that has not begun, or that has ended: all threads arrive
// when they begin, data threads wait before their first word; and a block ends only when
// it has seen the words of all for its last exchange, also when it has given up. Only who
// has emptied the words releases them: the fence takes 0.25 us, and data need not wait.
#pragma once

#include "memory.cuh"

namespace stretto {

__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
}
__device__ __forceinline__ void cluster_arrive_relaxed() {
  asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}

// Store a word at the same place in a block of this cluster.
template <u32 SHARE, class Board>
__device__ __forceinline__ void tell_block(Board&, u64& word, u32 block, u64 value) {
  const u32 here = static_cast<u32>(__cvta_generic_to_shared(&word));
  asm volatile(
      "{\n .reg .u32 there;\n mapa.shared::cluster.u32 there, %0, %1;\n"
      " st.relaxed.cluster.shared::cluster.u64 [there], %2;\n}" ::"r"(here),
      "r"(block), "l"(value)
      : "memory");
}

__device__ __forceinline__ u64 told(const u64& word) {
  u64 value;
  asm volatile("ld.relaxed.cluster.shared.u64 %0, [%1];"
               : "=l"(value)
               : "r"(static_cast<u32>(__cvta_generic_to_shared(&word)))
               : "memory");
  return value;
}

}  // namespace stretto
