// move.cuh -- the one thing all data steps do: combine sources, store everywhere.
//
// For every cell of the slice that is this thread's: start the loads of all sources, end
// them in the program's order, combine left to right, round once, store in every
// destination. Sources of a cell are read before its destinations are written, so
// operands may be the same memory.
//
// Moves that stand side by side run together: the loads of all of them are in flight
// before the first is stored, and all polls wait at once. The generator puts together
// only what does not read what another of them writes, and polls only where nobody else
// waits for what they store. What loads and stores mean for other ranks is said where
// the operands are (vector.cuh, packet.cuh).
#pragma once

#include "await.cuh"

namespace stretto {

// Start the loads of one round.
template <Round ROUND, u32 DEPTH, class Lane>
__device__ __forceinline__ void peek_parts(const Parts<>&, Vec*) {}
template <Round ROUND, u32 DEPTH, class Lane, class P, class... R>
__device__ __forceinline__ void peek_parts(const Parts<P, R...>& all, Vec* v) {
  const P& one = all.head;
  if (ROUND == Round::DEEP || one.template has<ROUND, 1, Lane>()) {
#pragma unroll
    for (u32 d = 0; d < DEPTH; ++d) {
      const u32 cell = one.cell + d * Lane::C::threads;
      if constexpr (ROUND == Round::WORDS) {
        peek_words_all(one.srcs, cell, one.template bytes<Lane>(), v);
      } else {
        peek_all(one.srcs, cell, v + d * P::sources);
      }
    }
  }
  peek_parts<ROUND, DEPTH, Lane>(all.rest, v + DEPTH * P::sources);
}

// Store one cell in each place, another one in every place: the d-th in the first, the
// next in the second. Peers' arrays begin at equal offsets, and stores to equal offsets of
// several peers meet on one link; these do not.
template <u32 DEPTH, u32 N, bool FINISH, class Lane, class... T>
__device__ __forceinline__ u32 put_turned(Lane& lane, const Operands<T...>& all,
                                          u32 cell, const Vec* v, u32 d) {
  if constexpr (sizeof...(T) == 0) {
    return SEEN;
  } else {
    using Op = typename Lane::Op;
    Vec value = v[d * N];
    if (FINISH && all.head.finished) {
      value = finish<typename Lane::E, Op, Lane::C::ranks>(value);
    }
    const u32 mine = all.head.put(lane, cell + d * Lane::C::threads, value);
    const u32 next = (d + 1) % DEPTH;
    return smaller(mine,
                   put_turned<DEPTH, N, FINISH>(lane, all.rest, cell, v, next));
  }
}

// Combine and store one round, and go on to the next.
template <Round ROUND, u32 DEPTH, class Lane>
__device__ __forceinline__ void put_parts(Lane&, Parts<>&, Vec*) {}
template <Round ROUND, u32 DEPTH, class Lane, bool FINISH, class D, class S, class... R>
__device__ __forceinline__ void put_parts(Lane& lane,
                                          Parts<Part<FINISH, D, S>, R...>& all, Vec* v) {
  using E = typename Lane::E;
  using Op = typename Lane::Op;
  constexpr u32 N = Part<FINISH, D, S>::sources;
  constexpr bool turned = DEPTH > 1 && Part<FINISH, D, S>::places > 1;
  auto& one = all.head;
  if (ROUND == Round::DEEP || one.template has<ROUND, 1, Lane>()) {
#pragma unroll
    for (u32 d = 0; d < DEPTH; ++d) {
      const u32 cell = one.cell + d * Lane::C::threads;
      open_all(one.srcs, v + d * N);
      const Vec raw = combine<E, Op, N>(v + d * N);
      if constexpr (turned) {
        v[d * N] = raw;
        continue;
      }
      const Vec final = FINISH ? finish<E, Op, Lane::C::ranks>(raw) : raw;
      u32 least;
      if constexpr (ROUND == Round::WORDS) {
        const u32 nbytes = one.template bytes<Lane>();
        least = put_words_all(lane, one.dsts, cell, nbytes, raw, final);
      } else {
        least = put_all(lane, one.dsts, cell, raw, final);
      }
      one.least = smaller(one.least, least);
    }
#pragma unroll
    for (u32 d = 0; turned && d < DEPTH; ++d) {
      one.least = smaller(one.least, put_turned<DEPTH, N, FINISH>(lane, one.dsts,
                                                                  one.cell, v, d));
    }
#pragma unroll
    for (u32 d = 0; d < DEPTH; ++d) {
      done_all(one.srcs, one.cell + d * Lane::C::threads);
    }
    one.cell += DEPTH * Lane::C::threads;
  }
  put_parts<ROUND, DEPTH>(lane, all.rest, v + DEPTH * N);
}

template <Round ROUND, u32 DEPTH, class Lane, class... P>
__device__ __forceinline__ void one_round(Lane& lane, Parts<P...>& all) {
  Vec v[DEPTH * sources_of<P...>];
  peek_parts<ROUND, DEPTH, Lane>(all, v);
  lane.settle();
  if constexpr ((P::polled || ...)) await<ROUND, DEPTH>(lane, all, v);
  if (lane.ok) put_parts<ROUND, DEPTH>(lane, all, v);
}

template <class Lane>
__device__ __forceinline__ void begin_parts(const Lane&, Parts<>&) {}
template <class Lane, class P, class... R>
__device__ __forceinline__ void begin_parts(const Lane& lane, Parts<P, R...>& all) {
  all.head.begin(lane);
  begin_parts(lane, all.rest);
}
template <class Lane>
__device__ __forceinline__ void close_parts(Lane&, Parts<>&) {}
template <class Lane, class P, class... R>
__device__ __forceinline__ void close_parts(Lane& lane, Parts<P, R...>& all) {
  close_all(lane, all.head.dsts, all.head.least == 0);
  close_parts(lane, all.rest);
}

// How many cells of each part to have in flight: what the plan asks for in all, as far as
// the registers of so many threads reach.
template <class Lane>
__device__ constexpr u32 depth_for(u32 parts, u32 sources, bool polled) {
  const u32 threads = Lane::C::threads, wanted = Lane::C::depth, lanes = Lane::E::lanes;
  const u32 registers = 512 / ((threads + CLERK + 127) / 128);  // of a thread, at most
  const u32 taken = (polled ? 72 : 64) + (lanes > 8 && sources > parts ? 32 : 0);
  const u32 cap = polled ? 8 : 16;
  const u32 room = registers < taken + 8 ? 1 : (registers - taken) / 4;
  const u32 most = (room < cap ? room : cap) / sources, each = wanted / parts;
  const u32 depth = each < most ? each : most;
  return depth > 0 ? depth : 1;
}

template <class Lane, class... P>
__device__ __forceinline__ void move_words(Lane& lane, Parts<P...>& all) {
  if constexpr ((P::worded || ...)) {
#pragma unroll 1
    while (lane.ok && any_has<Round::WORDS, Lane>(all)) {
      one_round<Round::WORDS, 1>(lane, all);
    }
  }
}

template <class Lane, class... P>
__device__ __forceinline__ void move(Lane& lane, Parts<P...> all) {
  constexpr bool polled = (P::polled || ...);
  constexpr u32 depth = depth_for<Lane>(sizeof...(P), sources_of<P...>, polled);
  begin_parts(lane, all);
  lane.enter();
  if constexpr (depth > 1) {
#pragma unroll 1
    while (lane.ok && all_have<depth, Lane>(all)) {
      one_round<Round::DEEP, depth>(lane, all);
    }
  }
#pragma unroll 1
  while (lane.ok && any_has<Round::WHOLE, Lane>(all)) {
    one_round<Round::WHOLE, 1>(lane, all);
  }
  move_words(lane, all);
  close_parts(lane, all);
}

}  // namespace stretto
