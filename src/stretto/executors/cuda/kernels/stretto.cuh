// stretto.cuh -- what generated kernels include: the steps of a plan, by their names.
//
// A step is one call, `copy<0>(lane, slice, to(...), from(...))`, the number its place in
// the lane; `true` after it says that its value is final. The names are those of the
// plan's text; what they do is said by their operands, so all of them are `move`. Steps
// that run side by side are `together(lane, ...)`, without the lane in each.
#pragma once

#include "clerk.cuh"
#include "flag.cuh"
#include "move.cuh"

namespace stretto {

template <class P, class... Rest>
__device__ __forceinline__ auto parts(P head, Rest... rest) {
  if constexpr (sizeof...(Rest) == 0) {
    return Parts<P>{head, {}};
  } else {
    return Parts<P, Rest...>{head, parts(rest...)};
  }
}

template <int STEP, class Lane, class... P>
__device__ __forceinline__ void together(Lane& lane, P... moves) {
  lane.step = STEP;
  move(lane, parts(moves...));
  lane.diary.end_step(STEP, lane.epoch);
}

#define STRETTO_STEP(name)                                                           \
  template <int STEP, bool FINISH = false, class D, class S>                         \
  __device__ __forceinline__ auto name(const Slice& s, D dsts, S srcs) {             \
    return Part<FINISH, D, S>{s, dsts, srcs};                                        \
  }                                                                                  \
  template <int STEP, bool FINISH = false, class Lane, class D, class S>             \
  __device__ __forceinline__ void name(Lane& lane, const Slice& s, D dsts, S srcs) { \
    together<STEP>(lane, name<STEP, FINISH>(s, dsts, srcs));                         \
  }

STRETTO_STEP(copy)
STRETTO_STEP(reduce)
STRETTO_STEP(put)
STRETTO_STEP(put_packets)
STRETTO_STEP(read_packets)
STRETTO_STEP(reduce_packets)
STRETTO_STEP(get)

#undef STRETTO_STEP

// Said once in a lane's steps, after the first of them: the epoch has been read, and
// what others wait for soonest is on its way.
template <class Lane>
__device__ __forceinline__ void under_way(const Lane&, u32 iteration) {
  if (iteration != 0) return;
  sign_off<Lane::C::threads>();
  let_next_begin();
}

// Run one lane of one block: all epochs of the call, of which there is one at least.
template <class C, class Table, class Steps>
__device__ __forceinline__ void run(const Params& p, const Table& at, u32 block,
                                    Steps steps) {
  const u32 worker = block * C::lanes + C::lane;
  if (threadIdx.x >= C::threads) return keep_books<C>(p, worker);
  Lane<C> lane(p, block);
  u32 iteration = 0;
#pragma unroll 1
  do {
    steps(lane, at, iteration);
    lane.explain();
    ++lane.epoch;
  } while (++iteration < p.tiles);
  lane.diary.close();
}

}  // namespace stretto
