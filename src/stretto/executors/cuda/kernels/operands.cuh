// operands.cuh -- the destinations or sources of a move, and what is done to all of them.
//
// A list whose length and types are known when the kernel is compiled: every function
// here is unrolled away. What the operations mean is said by the operands (vector.cuh,
// packet.cuh).
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

template <class... T>
__device__ __forceinline__ void peek_all(const Operands<T...>& all, u32 cell,
                                         Vec* parts) {
  if constexpr (sizeof...(T) > 0) {
    *parts = all.head.peek(cell);
    peek_all(all.rest, cell, parts + 1);
  }
}

// The same for `nbytes` of the cell, by words where the operand has them.
template <class T, class... Rest>
__device__ __forceinline__ void peek_words_all(const Operands<T, Rest...>& all,
                                               u32 cell, u32 nbytes, Vec* parts) {
  if constexpr (T::worded) {
    *parts = all.head.peek_words(cell, nbytes);
  } else {
    *parts = all.head.peek(cell);
  }
  if constexpr (sizeof...(Rest) > 0) {
    peek_words_all(all.rest, cell, nbytes, parts + 1);
  }
}

// Whether all sources of a cell are there: 0 when one is not (packet.cuh). `taken` has a
// bit for each part known to be there.
template <class... T>
__device__ __forceinline__ u32 seen_all(const Operands<T...>& all, const Vec* parts,
                                        u32 taken) {
  if constexpr (sizeof...(T) == 0) {
    return SEEN;
  } else {
    const u32 mine = taken & 1 ? SEEN : all.head.seen(*parts);
    return smaller(mine, seen_all(all.rest, parts + 1, taken >> 1));
  }
}

// Peek again at what is not there.
template <class... T>
__device__ __forceinline__ void peek_missing(const Operands<T...>& all, u32 cell,
                                             Vec* parts, u32 taken) {
  if constexpr (sizeof...(T) > 0) {
    if (!(taken & 1) && all.head.seen(*parts) == 0) *parts = all.head.peek(cell);
    peek_missing(all.rest, cell, parts + 1, taken >> 1);
  }
}

// The first of those whom a cell waits for.
template <class... T>
__device__ __forceinline__ int missing_peer(const Operands<T...>& all, const Vec* parts,
                                            u32 taken) {
  if constexpr (sizeof...(T) == 0) {
    return NOBODY;
  } else {
    if (!(taken & 1) && all.head.seen(*parts) == 0) return all.head.peer;
    return missing_peer(all.rest, parts + 1, taken >> 1);
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

// Store everywhere; 0 when a receiver could take it for nothing (packet.cuh).
template <class Lane, class... T>
__device__ __forceinline__ u32 put_all(Lane& lane, const Operands<T...>& all, u32 cell,
                                       const Vec& raw, const Vec& final) {
  if constexpr (sizeof...(T) == 0) {
    return SEEN;
  } else {
    const u32 mine = all.head.put(lane, cell, all.head.finished ? final : raw);
    return smaller(mine, put_all(lane, all.rest, cell, raw, final));
  }
}

template <class Lane, class T, class... Rest>
__device__ __forceinline__ u32 put_words_all(Lane& lane,
                                             const Operands<T, Rest...>& all, u32 cell,
                                             u32 nbytes, const Vec& raw,
                                             const Vec& final) {
  const Vec v = all.head.finished ? final : raw;
  u32 least = SEEN;
  if constexpr (T::worded) {
    all.head.put_words(lane, cell, v, nbytes);
  } else {
    least = all.head.put(lane, cell, v);
  }
  if constexpr (sizeof...(Rest) > 0) {
    least = smaller(least, put_words_all(lane, all.rest, cell, nbytes, raw, final));
  }
  return least;
}

template <class Lane, class... T>
__device__ __forceinline__ void close_all(Lane& lane, const Operands<T...>& all,
                                          bool escape) {
  if constexpr (sizeof...(T) > 0) {
    all.head.close(lane, escape);
    close_all(lane, all.rest, escape);
  }
}

}  // namespace stretto
