// flag.cuh -- signals and waits: what orders plain data between ranks.
//
// One 64-bit word for each ordered pair of lanes and block, written by one lane alone,
// never reset: the n-th signal of epoch e is e << 20 | n, and waiting is polling until
// the word is that or more.
//
//   signal  barrier of the lane's threads, then a release store by one of them: all that
//           the lane did before is visible to who acquires it (a barrier is cumulative).
//           A relaxed signal says only that the lane got here, and that what it read
//           before has been read.
//   wait    relaxed polls by one thread a flag; then a fence, which makes the last poll an
//           acquire; then the barrier, which hands it on to the lane's other threads.
//
// Several in a row are one call: one barrier, and each flag a thread of its own.
#pragma once

#include "lane.cuh"

namespace stretto {

template <int PEER, int PEER_LANE, int N, bool RELEASE = true>
struct Flag {};

// Of a rank on another host, which signals into pinned memory: to wait for.
template <int PEER, int PEER_LANE, int N>
struct FarFlag {};

template <class Lane>
__device__ __forceinline__ u64 flag_value(const Lane& lane, u32 n) {
  return lane.epoch << 20 | n;
}

// What thread K of a call has to do: the K-th of its flags.
struct FlagTask {
  u64* word = nullptr;
  u32 n = 0;
  int peer = -1;
  bool release = false;
};

template <bool MINE, class Lane, int PEER, int PEER_LANE, int N, bool RELEASE>
__device__ __forceinline__ void choose(const Lane& lane, u32 k, FlagTask& task,
                                       Flag<PEER, PEER_LANE, N, RELEASE>) {
  using C = typename Lane::C;
  if (lane.thread != k) return;
  task.word = MINE ? flag_word(lane.p.control[C::rank], lane.block, C::lane, PEER,
                               PEER_LANE)
                   : flag_word(lane.p.control[PEER], lane.block, PEER_LANE, C::rank,
                               C::lane);
  task.n = N;
  task.peer = PEER;
  task.release = RELEASE;
}

template <bool MINE, class Lane, int PEER, int PEER_LANE, int N>
__device__ __forceinline__ void choose(const Lane& lane, u32 k, FlagTask& task,
                                       FarFlag<PEER, PEER_LANE, N>) {
  using C = typename Lane::C;
  static_assert(MINE, "far.cuh signals");
  if (lane.thread != k) return;
  task.word = flag_word(lane.p.far, lane.block, C::lane, PEER, PEER_LANE);
  task.n = N;
  task.peer = PEER;
}

template <int STEP, class Lane, class... F>
__device__ __forceinline__ void signal(Lane& lane, F... flags) {
  static_assert(sizeof...(F) <= 32, "one warp signals");
  lane.step = STEP;
  lane.barrier();
  FlagTask task;
  u32 k = 0;
  (choose<false>(lane, k++, task, flags), ...);
  if (task.word != nullptr && lane.ok) {
    if (task.release) {
      store_release(task.word, flag_value(lane, task.n));
    } else {
      store_relaxed_word(task.word, flag_value(lane, task.n));
    }
  }
  lane.diary.end_step(STEP, lane.epoch);
}

template <int STEP, class Lane, class... F>
__device__ __forceinline__ void wait(Lane& lane, F... flags) {
  static_assert(sizeof...(F) <= 32, "one warp waits");
  lane.step = STEP;
  lane.diary.begin_wait();
  FlagTask task;
  u32 k = 0;
  (choose<true>(lane, k++, task, flags), ...);
  if (task.word != nullptr) {
    const u64 want = flag_value(lane, task.n);
    Patience patience;
    while (lane.ok) {
      const u64 got = load_relaxed_word(task.word);
      if (got >= want) break;
      const bool waits = patience.holds(lane.p, Lane::C::rank);
      if (!waits) lane.leave(task.peer, got, want);
    }
    fence();
  }
  lane.agree();
  lane.diary.end_wait();
  lane.diary.end_step(STEP, lane.epoch);
}

}  // namespace stretto
