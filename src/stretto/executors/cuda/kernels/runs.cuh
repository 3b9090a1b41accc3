// runs.cuh -- move the runs of a transfer: strided boxes on both sides, in one kernel.
//
// A run is bytes that lie one after the other at the source and at the destination. The
// boxes of a plan are alike but for where they begin, so a run's number says it all:
//
//   run = (chunk * boxes + box) * box_runs + nth;  nth, axis by axis, is its place
//
// LANES threads move a run together. Each loads AHEAD vectors before it stores the first:
// what is on the way hides the memory's latency. Nothing waits for anybody here.
//
// Where a word is to be raised, the block that ends last does it, after everything that
// any block has stored: whoever reads the word's new value, reads the runs' new bytes.
#pragma once

#include "words.cuh"

namespace stretto {

struct Ends {
  long long src, dst;
};

// Where a run begins. Axes of one value come first and cost nothing. ONE box of one
// chunk needs no tables: a small put does not wait for them.
template <unsigned DEPTH, bool ONE>
__device__ __forceinline__ Ends ends_of(const Runs& r, unsigned run) {
  unsigned nth = run;
  Ends at = {r.src, r.dst};
  if constexpr (!ONE) {
    nth = run % r.box_runs;
    unsigned box = run / r.box_runs;
    const unsigned chunk = box / r.boxes;
    box %= r.boxes;
    at = {r.src_chunk[chunk] + r.src_box[box], r.dst_chunk[chunk] + r.dst_box[box]};
  }
  if constexpr (DEPTH > 0) {  // a loop to 0 is warned of
#pragma unroll
    for (unsigned k = 0; k < DEPTH; ++k) {
      const unsigned axis = MOST_AXES - 1 - k, value = nth % r.size[axis];
      nth /= r.size[axis];
      at.src += value * r.src_step[axis];
      at.dst += value * r.dst_step[axis];
    }
  }
  return at;
}

template <class V, unsigned LANES, unsigned DEPTH, unsigned AHEAD, bool ONE>
__device__ __forceinline__ void move_runs(const Runs& r) {
  const unsigned lane = threadIdx.x % LANES, mine = threadIdx.x / LANES;
  const unsigned groups = blockDim.x / LANES;
  for (unsigned run = blockIdx.x * groups + mine; run < r.runs;
       run += gridDim.x * groups) {
    const Ends at = ends_of<DEPTH, ONE>(r, run);
    const V* const from = reinterpret_cast<const V*>(at.src);
    V* const to = reinterpret_cast<V*>(at.dst);
    unsigned u = lane;
    for (; u + (AHEAD - 1) * LANES < r.units; u += AHEAD * LANES) {
      V held[AHEAD];
#pragma unroll
      for (unsigned k = 0; k < AHEAD; ++k) held[k] = from[u + k * LANES];
#pragma unroll
      for (unsigned k = 0; k < AHEAD; ++k) to[u + k * LANES] = held[k];
    }
    for (; u < r.units; u += LANES) to[u] = from[u];
  }
}

// The number of this call; nobody counts it further before all blocks have read it.
__device__ __forceinline__ unsigned long long call_of(const Runs& r) {
  return threadIdx.x == 0 ? r.turns[1] + 1 : 0;
}

// Raise the word when all blocks have come here.
__device__ __forceinline__ void raise_word(const Runs& r, unsigned long long call) {
  __syncthreads();  // the block's stores are before what its first thread does
  if (threadIdx.x != 0) return;
  __threadfence_system();
  if (gridDim.x > 1) {
    if (atomicAdd(r.turns, 1ull) + 1 < gridDim.x) return;
    *r.turns = 0;
    __threadfence_system();
  }
  *static_cast<volatile unsigned long long*>(r.word) = call;
  r.turns[1] = call;
}

// The same, of elements that become another type: A and B widen to float and round.
template <class A, class B, unsigned LANES, unsigned DEPTH, bool ONE>
__device__ __forceinline__ void convert_runs(const Runs& r) {
  const unsigned lane = threadIdx.x % LANES, mine = threadIdx.x / LANES;
  const unsigned groups = blockDim.x / LANES;
  for (unsigned run = blockIdx.x * groups + mine; run < r.runs;
       run += gridDim.x * groups) {
    const Ends at = ends_of<DEPTH, ONE>(r, run);
    for (unsigned u = lane; u < r.units; u += LANES) {
      B::store(at.dst, u, A::load(at.src, u));
    }
  }
}

}  // namespace stretto
