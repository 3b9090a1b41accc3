// trees.cuh -- reductions in an order of their own: pairs, then pairs of pairs.
//
// The order depends on how many values there are and on nothing else, so the result is
// the same for any number of threads, blocks and rows.
#pragma once

#include "reduce.cuh"

namespace stretto {

// Reductions: what they begin with, and how two become one.
struct RowSum {
  static constexpr u32 nothing = 0;
  __device__ static float both(float a, float b) { return a + b; }
};
struct RowMax {
  static constexpr u32 nothing = 0xff800000u;
  __device__ static float both(float a, float b) { return Max::apply(a, b); }
};

// Neighbours in pairs, pairs of pairs: the same in every lane.
template <class R>
__device__ __forceinline__ float warp_tree(float value) {
#pragma unroll
  for (int d = 1; d < 32; d *= 2) {
    value = R::both(value, __shfl_xor_sync(~0u, value, d));
  }
  return value;
}
// Several side by side.
template <class R, u32 COUNT>
__device__ __forceinline__ void warp_trees(float (&values)[COUNT]) {
#pragma unroll
  for (int d = 1; d < 32; d *= 2) {
#pragma unroll
    for (u32 i = 0; i < COUNT; ++i) {
      values[i] = R::both(values[i], __shfl_xor_sync(~0u, values[i], d));
    }
  }
}

template <class R, u32 COUNT>
__device__ __forceinline__ float tree(float (&part)[COUNT]) {
#pragma unroll
  for (u32 step = 1; step < COUNT; step *= 2) {
#pragma unroll
    for (u32 i = 0; i < COUNT; i += 2 * step) {
      const float other = i + step < COUNT ? part[i + step] : as_float(R::nothing);
      part[i] = R::both(part[i], other);
    }
  }
  return part[0];
}

}  // namespace stretto
