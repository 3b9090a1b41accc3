// await.cuh -- until everything is there: the polls of all parts of a round at once.
#pragma once

#include "part.cuh"

namespace stretto {

// Whether all cells of a round are there, the same again for what is not, and who sends
// the first of those.
template <Round ROUND, u32 DEPTH, class Lane>
__device__ __forceinline__ u32 seen_parts(const Parts<>&, const Vec*, u32) {
  return SEEN;
}
template <Round ROUND, u32 DEPTH, class Lane, class P, class... R>
__device__ __forceinline__ u32 seen_parts(const Parts<P, R...>& all, const Vec* v,
                                          u32 taken) {
  u32 least = SEEN;
  if (P::polled && (ROUND == Round::DEEP || all.head.template has<ROUND, 1, Lane>())) {
#pragma unroll
    for (u32 d = 0; d < DEPTH; ++d) {
      least = smaller(least, seen_all(all.head.srcs, v + d * P::sources, taken));
    }
  }
  return smaller(least, seen_parts<ROUND, DEPTH, Lane>(
                            all.rest, v + DEPTH * P::sources, taken >> P::sources));
}

template <Round ROUND, u32 DEPTH, class Lane>
__device__ __forceinline__ void peek_again(const Parts<>&, Vec*, u32) {}
template <Round ROUND, u32 DEPTH, class Lane, class P, class... R>
__device__ __forceinline__ void peek_again(const Parts<P, R...>& all, Vec* v,
                                           u32 taken) {
  const P& one = all.head;
  if (P::polled && (ROUND == Round::DEEP || one.template has<ROUND, 1, Lane>())) {
#pragma unroll
    for (u32 d = 0; d < DEPTH; ++d) {
      const u32 cell = one.cell + d * Lane::C::threads;
      peek_missing(one.srcs, cell, v + d * P::sources, taken);
    }
  }
  peek_again<ROUND, DEPTH, Lane>(all.rest, v + DEPTH * P::sources, taken >> P::sources);
}

template <Round ROUND, u32 DEPTH, class Lane>
__device__ __forceinline__ int first_missing(const Parts<>&, const Vec*, u32) {
  return NOBODY;
}
template <Round ROUND, u32 DEPTH, class Lane, class P, class... R>
__device__ __forceinline__ int first_missing(const Parts<P, R...>& all, const Vec* v,
                                             u32 taken) {
  int whom = NOBODY;
  if (P::polled && (ROUND == Round::DEEP || all.head.template has<ROUND, 1, Lane>())) {
    for (u32 d = 0; d < DEPTH && whom == NOBODY; ++d) {
      whom = missing_peer(all.head.srcs, v + d * P::sources, taken);
    }
  }
  if (whom != NOBODY) return whom;
  return first_missing<ROUND, DEPTH, Lane>(all.rest, v + DEPTH * P::sources,
                                           taken >> P::sources);
}

template <class Lane>
__device__ __forceinline__ u32 escaped_in(const Lane&, const Parts<>&) {
  return 0;
}
template <class Lane, class P, class... R>
__device__ __forceinline__ u32 escaped_in(const Lane& lane, const Parts<P, R...>& all) {
  const u32 mine = P::polled ? escaped_parts(lane, all.head.srcs) : 0;
  return mine | escaped_in(lane, all.rest) << P::sources;
}

// Poll until everything is there, or until it has taken too long.
template <Round ROUND, u32 DEPTH, class Lane, class... P>
__device__ __forceinline__ void await(Lane& lane, const Parts<P...>& all, Vec* v) {
  Patience patience;
  u32 taken = 0;
  lane.diary.begin_wait();
  while (lane.ok && seen_parts<ROUND, DEPTH, Lane>(all, v, taken) == 0) {
    peek_again<ROUND, DEPTH, Lane>(all, v, taken);
    if (!patience.holds(lane.p, Lane::C::rank)) {
      const int whom = first_missing<ROUND, DEPTH, Lane>(all, v, taken);
      if (whom != NOBODY) lane.leave(whom, 0, 0);
    }
    if (patience.polls % ESCAPE_PATIENCE == 0) {
      // What was peeked before its escape was known may be stale: look once more.
      taken = escaped_in(lane, all);
      if (taken != 0) peek_again<ROUND, DEPTH, Lane>(all, v, 0);
    }
  }
  lane.diary.end_wait();
}

}  // namespace stretto
