// stretto.cuh -- what generated kernels include: the steps of a plan, by their names.
//
// A step is one call, `copy<0>(lane, slice, to(...), from(...))`, the number its place in
// the lane. The names are those of the plan's text; what they do is said by their
// operands, so all of them are `move`.
#pragma once

#include "clerk.cuh"
#include "flag.cuh"
#include "move.cuh"

namespace stretto {

#define STRETTO_STEP(name)                                                           \
  template <int STEP, bool FINISH = false, class Lane, class D, class S>             \
  __device__ __forceinline__ void name(Lane& lane, const Slice& s, D dsts, S srcs) { \
    lane.step = STEP;                                                                \
    move<FINISH>(lane, s, dsts, srcs);                                               \
  }

STRETTO_STEP(copy)
STRETTO_STEP(reduce)
STRETTO_STEP(put)
STRETTO_STEP(put_packets)
STRETTO_STEP(read_packets)
STRETTO_STEP(reduce_packets)
STRETTO_STEP(get)

#undef STRETTO_STEP

// Run one lane of one block: all epochs of the call.
template <class C, class Table, class Steps>
__device__ __forceinline__ void run(const Params& p, const Table& at, u32 block,
                                    Steps steps) {
  const u32 worker = block * C::lanes + C::lane;
  const u64 epoch = load_relaxed_word(control_word(p.control[C::rank], EPOCHS, worker));
  if (threadIdx.x >= C::threads) return keep_books<C>(p, worker, epoch);
  sign_off<C::threads>(epoch);
  Lane<C> lane(p, block, epoch);
  for (u32 iteration = 0; iteration < p.tiles; ++iteration) {
    steps(lane, at, iteration);
    ++lane.epoch;
  }
  lane.explain();
}

}  // namespace stretto
