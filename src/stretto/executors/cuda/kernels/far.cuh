// far.cuh -- signals to ranks on other hosts, with what was put there before.
//
// A put to such a rank is stored in the mirror of its staging (Params: stage). The next
// signal of the lane to that rank asks the host to send it: one request for a range, and
// the last of them raises the flag. The barrier before it makes what all threads of the
// lane have stored part of what the asking thread releases.
#pragma once

#include "flag.cuh"
#include "ring.cuh"

namespace stretto {

struct FarPut {
  u64 at;
  u32 nbytes;
};

template <int PEER, int PEER_LANE, int N, u32 PUTS>
struct FarSignal {
  FarPut puts[PUTS > 0 ? PUTS : 1];
};

template <int PEER, class Lane>
__device__ __forceinline__ FarPut there(const Lane& lane, u32 pos, const Slice& s) {
  return {lane.template place_of<PEER>(pos), s.nbytes};
}

template <int PEER, int PEER_LANE, int N, class... P>
__device__ __forceinline__ auto far_signal(P... puts) {
  return FarSignal<PEER, PEER_LANE, N, sizeof...(P)>{{puts...}};
}

template <class Lane, int PEER, int PEER_LANE, int N, u32 PUTS>
__device__ __forceinline__ void send(Lane& lane, u32 k,
                                     const FarSignal<PEER, PEER_LANE, N, PUTS>& one) {
  using C = typename Lane::C;
  constexpr u32 warps = C::threads / 32;
  if (!lane.ok || lane.thread != k % warps * 32 + k / warps) return;
  const u64 value = flag_value(lane, N);
  const u64 word = FLAGS + 8 * ((((lane.block * MAX_LANES + PEER_LANE) * MAX_LANES) +
                                 C::lane) * MAX_RANKS + C::rank);
  bool asked = true;
  u32 left = PUTS;
  while (left > 0 && one.puts[left - 1].nbytes == 0) --left;  // nothing beyond its end
  if constexpr (PUTS > 1) {
#pragma unroll
    for (u32 i = 0; i + 1 < PUTS; ++i) {
      if (i + 1 < left && one.puts[i].nbytes > 0) {
        asked = asked && ask_host(lane.p, C::rank,
                                  {PEER, one.puts[i].at, one.puts[i].nbytes, 0, 0});
      }
    }
  }
  const FarPut last = left > 0 ? one.puts[left - 1] : FarPut{0, 0};
  asked = asked && ask_host(lane.p, C::rank, {PEER, last.at, last.nbytes, word, value});
  if (!asked) lane.leave(PEER, 0, value);
}

template <int STEP, class Lane, class... F>
__device__ __forceinline__ void signal_far(Lane& lane, F... flags) {
  static_assert(sizeof...(F) <= 32, "a thread a signal");
  lane.step = STEP;
  lane.barrier();
  u32 k = 0;
  (send(lane, k++, flags), ...);
}

}  // namespace stretto
