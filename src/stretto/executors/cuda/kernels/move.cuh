// move.cuh -- the one thing all data steps do: combine sources, store everywhere.
//
// For every cell of the slice that is this thread's: start the loads of all sources (of
// `depth` cells at a time), end them in the program's order, combine left to right, round
// once, store in every destination. Sources of a cell are read before its destinations
// are written, so operands may be the same memory. What the loads and stores mean for
// other ranks is said where the operands are (vector.cuh, packet.cuh).
#pragma once

#include "lane.cuh"

namespace stretto {

template <class... T>
struct Operands;
template <>
struct Operands<> {};
template <class T, class... Rest>
struct Operands<T, Rest...> {
  T head;
  Operands<Rest...> rest;
};

template <class T>
__device__ __forceinline__ Operands<T> operands(T last) {
  return {last, {}};
}
template <class T, class... Rest>
__device__ __forceinline__ auto operands(T head, Rest... rest) {
  return Operands<T, Rest...>{head, operands(rest...)};
}
// How steps spell them.
template <class... T>
__device__ __forceinline__ auto to(T... dsts) {
  return operands(dsts...);
}
template <class... T>
__device__ __forceinline__ auto from(T... srcs) {
  return operands(srcs...);
}

template <class... T>
__device__ __forceinline__ void shift_all(Operands<T...>& all, const Slice& s) {
  if constexpr (sizeof...(T) > 0) {
    all.head.shift(s);
    shift_all(all.rest, s);
  }
}

template <class... T>
__device__ __forceinline__ bool all_aligned(const Operands<T...>& all) {
  if constexpr (sizeof...(T) == 0) {
    return true;
  } else {
    return all.head.aligned() && all_aligned(all.rest);
  }
}

template <class... T>
constexpr bool any_polled = (T::polled || ...);

template <class T>
__device__ __forceinline__ Vec peek_one(const T& src, u32 cell, bool whole, u32 nbytes) {
  if constexpr (T::worded) {
    if (!whole) return src.peek_words(cell, nbytes);
  }
  return src.peek(cell);
}

template <class... T>
__device__ __forceinline__ void peek_all(const Operands<T...>& all, u32 cell, bool whole,
                                         u32 nbytes, Vec* parts) {
  if constexpr (sizeof...(T) > 0) {
    *parts = peek_one(all.head, cell, whole, nbytes);
    peek_all(all.rest, cell, whole, nbytes, parts + 1);
  }
}

// One look at all sources of a cell: peeks again at what is not there, and returns the
// first of those whom it waits for. `taken` has a bit for each part known to be there.
template <class... T>
__device__ __forceinline__ int look_again(const Operands<T...>& all, u32 cell,
                                          Vec* parts, u32 taken) {
  if constexpr (sizeof...(T) == 0) {
    return NOBODY;
  } else {
    int missing = NOBODY;
    if (!all.head.there(*parts) && !(taken & 1)) {
      *parts = all.head.peek(cell);
      missing = all.head.peer;
    }
    const int other = look_again(all.rest, cell, parts + 1, taken >> 1);
    return missing == NOBODY ? other : missing;
  }
}

// Which parts have arrived though they look like nothing (packet.cuh).
template <class Lane, class... T>
__device__ __forceinline__ u32 escaped_parts(const Lane& lane,
                                             const Operands<T...>& all) {
  if constexpr (sizeof...(T) == 0) {
    return 0;
  } else {
    const u32 rest = escaped_parts(lane, all.rest) << 1;
    return all.head.escaped(lane) ? rest | 1 : rest;
  }
}

template <class... T>
__device__ __forceinline__ void open_all(const Operands<T...>& all, Vec* parts) {
  if constexpr (sizeof...(T) > 0) {
    *parts = all.head.opened(*parts);
    open_all(all.rest, parts + 1);
  }
}

template <class... T>
__device__ __forceinline__ void done_all(const Operands<T...>& all, u32 cell) {
  if constexpr (sizeof...(T) > 0) {
    all.head.done(cell);
    done_all(all.rest, cell);
  }
}

template <class Lane, class T>
__device__ __forceinline__ bool put_one(Lane& lane, const T& dst, u32 cell, bool whole,
                                        u32 nbytes, const Vec& v) {
  if constexpr (T::worded) {
    if (!whole) return dst.put_words(lane, cell, v, nbytes);
  }
  return dst.put(lane, cell, v);
}

template <class Lane, class... T>
__device__ __forceinline__ bool put_all(Lane& lane, const Operands<T...>& all, u32 cell,
                                        bool whole, u32 nbytes, const Vec& raw,
                                        const Vec& final) {
  if constexpr (sizeof...(T) == 0) {
    return false;
  } else {
    const Vec v = all.head.finished ? final : raw;
    const bool escape = put_one(lane, all.head, cell, whole, nbytes, v);
    return put_all(lane, all.rest, cell, whole, nbytes, raw, final) || escape;
  }
}

template <class Lane, class... T>
__device__ __forceinline__ void close_all(Lane& lane, const Operands<T...>& all,
                                          bool escape) {
  if constexpr (sizeof...(T) > 0) {
    all.head.close(lane, escape);
    close_all(lane, all.rest, escape);
  }
}

// Poll until all parts of all cells are there, or until it has taken too long.
template <u32 DEPTH, class Lane, class... S>
__device__ __forceinline__ void await(Lane& lane, const Operands<S...>& srcs, u32 cell,
                                      Vec (&parts)[DEPTH][sizeof...(S)]) {
  Patience patience;
  u32 taken = 0;
  while (lane.ok) {
    int missing = NOBODY;
#pragma unroll
    for (u32 d = 0; d < DEPTH; ++d) {
      const u32 at = cell + d * Lane::C::threads;
      const int one = look_again(srcs, at, parts[d], taken);
      missing = missing == NOBODY ? one : missing;
    }
    if (missing == NOBODY) break;
    if (!lane.may_wait(patience)) lane.leave(missing, 0, 0);
    if (patience.polls % ESCAPE_PATIENCE == 0) {
      // A part peeked before its escape was known may be stale: look once more.
      taken = escaped_parts(lane, srcs);
      if (taken != 0) {
#pragma unroll
        for (u32 d = 0; d < DEPTH; ++d) {
          look_again(srcs, cell + d * Lane::C::threads, parts[d], 0);
        }
      }
    }
  }
}

// DEPTH cells of this thread, from `cell`: whole vectors, or `nbytes` in words.
template <bool FINISH, u32 DEPTH, class Lane, class... D, class... S>
__device__ __forceinline__ bool move_cells(Lane& lane, const Operands<D...>& dsts,
                                           const Operands<S...>& srcs, u32 cell,
                                           bool whole, u32 nbytes) {
  using C = typename Lane::C;
  using E = typename Lane::E;
  using Op = typename Lane::Op;
  Vec parts[DEPTH][sizeof...(S)];
  bool escape = false;
#pragma unroll
  for (u32 d = 0; d < DEPTH; ++d) {
    peek_all(srcs, cell + d * C::threads, whole, nbytes, parts[d]);
  }
  if constexpr (any_polled<S...>) await(lane, srcs, cell, parts);
  if (!lane.ok) return false;
#pragma unroll
  for (u32 d = 0; d < DEPTH; ++d) {
    open_all(srcs, parts[d]);
    const Vec raw = combine<E, Op>(parts[d]);
    const Vec final = FINISH ? finish<E, Op, C::ranks>(raw) : raw;
    escape |= put_all(lane, dsts, cell + d * C::threads, whole, nbytes, raw, final);
  }
#pragma unroll
  for (u32 d = 0; d < DEPTH; ++d) done_all(srcs, cell + d * C::threads);
  return escape;
}

// How many cells' sources to have in flight: what the plan asks, within the registers.
constexpr u32 depth_for(u32 wanted, u32 sources, bool polled) {
  const u32 most = (polled ? 8 : 16) / sources;
  return wanted < most ? wanted : most > 0 ? most : 1;
}

template <bool FINISH, class Lane, class... D, class... S>
__device__ __forceinline__ void move(Lane& lane, const Slice& s, Operands<D...> dsts,
                                     Operands<S...> srcs) {
  using C = typename Lane::C;
  using Cells = typename Lane::Cells;
  constexpr u32 depth = depth_for(C::depth, sizeof...(S), any_polled<S...>);
  shift_all(dsts, s);
  shift_all(srcs, s);
  const bool aligned = all_aligned(dsts) && all_aligned(srcs);
  u32 cell = first_cell<C::threads>(lane.thread, s.turn);
  bool escape = false;
  if constexpr (depth > 1) {
    const u32 whole = aligned ? Cells::whole_cells(s.nbytes) : 0;
#pragma unroll 1
    for (; cell + (depth - 1) * C::threads < whole; cell += depth * C::threads) {
      escape |= move_cells<FINISH, depth>(lane, dsts, srcs, cell, true, 16);
    }
  }
#pragma unroll 1
  for (; Cells::covers(cell, s.nbytes); cell += C::threads) {
    const u32 start = Cells::offset(cell), full = Cells::bytes(cell);
    const u32 left = start < s.nbytes ? s.nbytes - start : 0;
    const bool whole = aligned && left >= full;
    const u32 nbytes = left < full ? left : full;
    escape |= move_cells<FINISH, 1>(lane, dsts, srcs, cell, whole, nbytes);
  }
  close_all(lane, dsts, escape);
}

}  // namespace stretto
