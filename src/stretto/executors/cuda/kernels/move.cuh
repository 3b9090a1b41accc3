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
// the operands are (vector.cuh, packet.cuh, line.cuh).
#pragma once

#include "operands.cuh"

namespace stretto {

// One move of one atom: `FINISH` when its value is final.
template <bool FINISH, class D, class S>
struct Part;
template <bool FINISH, class... D, class... S>
struct Part<FINISH, Operands<D...>, Operands<S...>> {
  static constexpr u32 sources = sizeof...(S);
  static constexpr bool polled = any_polled<S...>;
  Slice slice;
  Operands<D...> dsts;
  Operands<S...> srcs;
  u32 cell = 0;
  bool aligned = false, escape = false;

  template <class Lane>
  __device__ __forceinline__ void begin(const Lane& lane) {
    shift_all(dsts, slice);
    shift_all(srcs, slice);
    aligned = all_aligned(dsts) && all_aligned(srcs);
    cell = first_cell<Lane::C::threads>(lane.thread, slice.turn);
  }
  // Whether this thread has a cell left, or DEPTH of them that are whole.
  template <class Lane>
  __device__ bool more() const {
    return Lane::Cells::covers(cell, slice.nbytes);
  }
  template <u32 DEPTH, class Lane>
  __device__ bool deep() const {
    const u32 whole = aligned ? Lane::Cells::whole_cells(slice.nbytes) : 0;
    return cell + (DEPTH - 1) * Lane::C::threads < whole;
  }
  // The bytes of the cell, and whether they are all of it.
  template <class Lane>
  __device__ __forceinline__ u32 bytes(bool& whole) const {
    using Cells = typename Lane::Cells;
    const u32 start = Cells::offset(cell), full = Cells::bytes(cell);
    const u32 left = start < slice.nbytes ? slice.nbytes - start : 0;
    whole = aligned && left >= full;
    return left < full ? left : full;
  }
};

template <class... P>
struct Parts;
template <>
struct Parts<> {};
template <class P, class... Rest>
struct Parts<P, Rest...> {
  P head;
  Parts<Rest...> rest;
};

template <class... P>
constexpr u32 sources_of = (0 + ... + P::sources);

// Whether every part has DEPTH whole cells left; whether any has one.
template <u32 DEPTH, class Lane>
__device__ __forceinline__ bool all_deep(const Parts<>&) {
  return true;
}
template <u32 DEPTH, class Lane, class P, class... R>
__device__ __forceinline__ bool all_deep(const Parts<P, R...>& all) {
  return all.head.template deep<DEPTH, Lane>() && all_deep<DEPTH, Lane>(all.rest);
}
template <class Lane>
__device__ __forceinline__ bool any_more(const Parts<>&) {
  return false;
}
template <class Lane, class P, class... R>
__device__ __forceinline__ bool any_more(const Parts<P, R...>& all) {
  return all.head.template more<Lane>() || any_more<Lane>(all.rest);
}

// Start the loads of one round: DEPTH cells of every part, or (WHOLE false) the next cell
// of those parts that have one.
template <u32 DEPTH, bool WHOLE, class Lane>
__device__ __forceinline__ void peek_parts(const Parts<>&, Vec*) {}
template <u32 DEPTH, bool WHOLE, class Lane, class P, class... R>
__device__ __forceinline__ void peek_parts(const Parts<P, R...>& all, Vec* v) {
  const P& one = all.head;
  if (WHOLE || one.template more<Lane>()) {
    bool whole = true;
    const u32 nbytes = WHOLE ? 16 : one.template bytes<Lane>(whole);
#pragma unroll
    for (u32 d = 0; d < DEPTH; ++d) {
      const u32 cell = one.cell + d * Lane::C::threads;
      peek_all(one.srcs, cell, whole, nbytes, v + d * P::sources);
    }
  }
  peek_parts<DEPTH, WHOLE, Lane>(all.rest, v + DEPTH * P::sources);
}

// One look at what was not there; whom it waits for, or nobody.
template <u32 DEPTH, bool WHOLE, class Lane>
__device__ __forceinline__ int look_at_parts(const Parts<>&, Vec*, u32) {
  return NOBODY;
}
template <u32 DEPTH, bool WHOLE, class Lane, class P, class... R>
__device__ __forceinline__ int look_at_parts(const Parts<P, R...>& all, Vec* v,
                                             u32 taken) {
  int missing = NOBODY;
  if (P::polled && (WHOLE || all.head.template more<Lane>())) {
#pragma unroll
    for (u32 d = 0; d < DEPTH; ++d) {
      const u32 cell = all.head.cell + d * Lane::C::threads;
      const int one = look_again(all.head.srcs, cell, v + d * P::sources, taken);
      missing = missing == NOBODY ? one : missing;
    }
  }
  const int other = look_at_parts<DEPTH, WHOLE, Lane>(
      all.rest, v + DEPTH * P::sources, taken >> P::sources);
  return missing == NOBODY ? other : missing;
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
template <u32 DEPTH, bool WHOLE, class Lane, class... P>
__device__ __forceinline__ void await(Lane& lane, const Parts<P...>& all, Vec* v) {
  Patience patience;
  u32 taken = 0;
  while (lane.ok) {
    const int missing = look_at_parts<DEPTH, WHOLE, Lane>(all, v, taken);
    if (missing == NOBODY) break;
    if (!lane.may_wait(patience)) lane.leave(missing, 0, 0);
    if (patience.polls % ESCAPE_PATIENCE == 0) {
      // What was peeked before its escape was known may be stale: look once more.
      taken = escaped_in(lane, all);
      if (taken != 0) look_at_parts<DEPTH, WHOLE, Lane>(all, v, 0);
    }
  }
}

// Combine and store one round, and go on to the next.
template <u32 DEPTH, bool WHOLE, class Lane>
__device__ __forceinline__ void put_parts(Lane&, Parts<>&, Vec*) {}
template <u32 DEPTH, bool WHOLE, class Lane, bool FINISH, class D, class S, class... R>
__device__ __forceinline__ void put_parts(Lane& lane,
                                          Parts<Part<FINISH, D, S>, R...>& all, Vec* v) {
  using E = typename Lane::E;
  using Op = typename Lane::Op;
  constexpr u32 N = Part<FINISH, D, S>::sources;
  auto& one = all.head;
  if (WHOLE || one.template more<Lane>()) {
    bool whole = true;
    const u32 nbytes = WHOLE ? 16 : one.template bytes<Lane>(whole);
#pragma unroll
    for (u32 d = 0; d < DEPTH; ++d) {
      const u32 cell = one.cell + d * Lane::C::threads;
      open_all(one.srcs, v + d * N);
      const Vec raw = combine<E, Op, N>(v + d * N);
      const Vec final = FINISH ? finish<E, Op, Lane::C::ranks>(raw) : raw;
      one.escape |= put_all(lane, one.dsts, cell, whole, nbytes, raw, final);
    }
#pragma unroll
    for (u32 d = 0; d < DEPTH; ++d) {
      done_all(one.srcs, one.cell + d * Lane::C::threads);
    }
    one.cell += DEPTH * Lane::C::threads;
  }
  put_parts<DEPTH, WHOLE>(lane, all.rest, v + DEPTH * N);
}

template <u32 DEPTH, bool WHOLE, class Lane, class... P>
__device__ __forceinline__ void one_round(Lane& lane, Parts<P...>& all) {
  Vec v[DEPTH * sources_of<P...>];
  peek_parts<DEPTH, WHOLE, Lane>(all, v);
  lane.settle();
  if constexpr ((P::polled || ...)) await<DEPTH, WHOLE>(lane, all, v);
  if (lane.ok) put_parts<DEPTH, WHOLE>(lane, all, v);
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
  close_all(lane, all.head.dsts, all.head.escape);
  close_parts(lane, all.rest);
}

// How many cells of each part to have in flight: what the plan asks for in all, as far as
// the registers of so many threads reach.
constexpr u32 depth_for(u32 wanted, u32 parts, u32 sources, bool polled, u32 threads) {
  const u32 registers = 512 / ((threads + CLERK + 127) / 128);  // of a thread, at most
  const u32 spare = registers - (polled ? 72 : 64), cap = polled ? 8 : 16;
  const u32 room = registers < 80 ? 1 : spare / 4;
  const u32 most = (room < cap ? room : cap) / sources, each = wanted / parts;
  const u32 depth = each < most ? each : most;
  return depth > 0 ? depth : 1;
}

template <class Lane, class... P>
__device__ __forceinline__ void move(Lane& lane, Parts<P...> all) {
  constexpr bool polled = (P::polled || ...);
  constexpr u32 depth =
      depth_for(Lane::C::depth, sizeof...(P), sources_of<P...>, polled, Lane::C::threads);
  if (!lane.ok) return;
  begin_parts(lane, all);
  if constexpr (depth > 1) {
#pragma unroll 1
    while (lane.ok && all_deep<depth, Lane>(all)) one_round<depth, true>(lane, all);
  }
#pragma unroll 1
  while (lane.ok && any_more<Lane>(all)) one_round<1, false>(lane, all);
  close_parts(lane, all);
}

}  // namespace stretto
