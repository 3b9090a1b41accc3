// parts.cuh -- add parts that lie one after the other in memory: one pass over them.
//
// Each element is widened, added in the order of the parts, and rounded once. A thread
// has loaded its vectors of all parts before it adds the first two.
#pragma once

#include "element.cuh"
#include "stream.cuh"
#include "words.cuh"

namespace stretto {

template <class E, u32 PARTS>
__device__ __forceinline__ void add_parts(const Stacked& p) {
  const u64 all = u64(gridDim.x) * blockDim.x;
  for (u64 i = u64(blockIdx.x) * blockDim.x + threadIdx.x; i < p.vectors; i += all) {
    Vec held[PARTS];
#pragma unroll
    for (u32 q = 0; q < PARTS; ++q) {
      held[q] = reinterpret_cast<const Vec*>(p.first + q * p.step)[i];
    }
    typename E::Wide total[E::lanes], more[E::lanes];
    E::unpack(held[0], total);
#pragma unroll
    for (u32 q = 1; q < PARTS; ++q) {
      E::unpack(held[q], more);
#pragma unroll
      for (u32 k = 0; k < E::lanes; ++k) total[k] += more[k];
    }
    reinterpret_cast<Vec*>(p.out)[i] = E::pack(total);
  }
}

}  // namespace stretto
