// part.cuh -- one move of one atom, as one thread goes through it; and several at once.
#pragma once

#include "operands.cuh"

namespace stretto {

// What a round moves: DEPTH whole cells of every part; the next whole cell of those that
// have one; the next cell, by words, of those that end with less or lie askew. The first
// two are what nearly all calls are made of, so they carry nothing of the third.
enum class Round { DEEP, WHOLE, WORDS };

// One move of one atom: `FINISH` when its value is final.
template <bool FINISH, class D, class S>
struct Part;
template <bool FINISH, class... D, class... S>
struct Part<FINISH, Operands<D...>, Operands<S...>> {
  static constexpr u32 sources = sizeof...(S);
  static constexpr bool polled = any_polled<S...>;
  static constexpr u32 places = sizeof...(D);
  static constexpr bool worded = (D::worded || ...) || (S::worded || ...);
  Slice slice;
  Operands<D...> dsts;
  Operands<S...> srcs;
  u32 cell = 0, whole = 0, cells = 0;  // the next; where the whole ones end; and all
  u32 least = SEEN;  // of what was stored: 0 when a receiver could take it for nothing

  template <class Lane>
  __device__ __forceinline__ void begin(const Lane& lane) {
    shift_all(dsts, slice);
    shift_all(srcs, slice);
    cells = (slice.nbytes + 15) / 16;
    whole = cells;
    if constexpr (worded) {
      const bool aligned = all_aligned(dsts) && all_aligned(srcs);
      whole = aligned ? slice.nbytes / 16 : 0;
    }
    cell = first_cell<Lane::C::threads>(lane.thread, slice.turn);
  }
  // Whether this thread has something for such a round.
  template <Round R, u32 DEPTH, class Lane>
  __device__ __forceinline__ bool has() const {
    if (R == Round::WORDS) return worded && cell < cells;
    return cell + (DEPTH - 1) * Lane::C::threads < whole;
  }
  // The bytes of the cell, for a round of words.
  template <class Lane>
  __device__ __forceinline__ u32 bytes() const {
    const u32 start = cell * 16, left = slice.nbytes - start;
    return slice.nbytes < start ? 0 : left < 16 ? left : 16;
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

template <u32 DEPTH, class Lane>
__device__ __forceinline__ bool all_have(const Parts<>&) {
  return true;
}
template <u32 DEPTH, class Lane, class P, class... R>
__device__ __forceinline__ bool all_have(const Parts<P, R...>& all) {
  return all.head.template has<Round::DEEP, DEPTH, Lane>() &&
         all_have<DEPTH, Lane>(all.rest);
}
template <Round ROUND, class Lane>
__device__ __forceinline__ bool any_has(const Parts<>&) {
  return false;
}
template <Round ROUND, class Lane, class P, class... R>
__device__ __forceinline__ bool any_has(const Parts<P, R...>& all) {
  return all.head.template has<ROUND, 1, Lane>() || any_has<ROUND, Lane>(all.rest);
}

}  // namespace stretto
