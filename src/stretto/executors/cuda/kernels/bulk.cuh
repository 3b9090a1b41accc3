// bulk.cuh -- moves of plain data by the copy unit: few SMs, large packets on the wire.
//
// A ring of STAGES chunks in shared memory. What is only copied never meets a register:
// one thread asks for loads and stores, the chunks of all parts one after the other. What
// is combined is loaded and added by all threads, left in the ring, and stored from there
// in all destinations. Ends that are not 16 bytes long, and arrays that lie askew, are
// moved by words (move.cuh).
//
// Order: a move begins and ends with a barrier of the lane, and what it stored is complete
// when it ends; a signal that follows says so to peers. Between the two proxies there is a
// fence at both ends.
#pragma once

#include "move.cuh"
#include "tma.cuh"

namespace stretto {

constexpr u32 CHUNK = 16 << 10, CHUNK_CELLS = CHUNK / 16;

template <class C>
struct Ring {
  static constexpr u32 stages = C::stages, unread = stages / 2, ahead = stages - unread;
  __device__ static u32 place(u32 nth) {
    return shared_memory() + nth % stages * CHUNK;
  }
  __device__ static u32 barrier(u32 nth) {
    return shared_memory() + stages * CHUNK + nth % stages * 8;
  }
  __device__ static void make() {
    if (threadIdx.x < stages) make_load_barrier(barrier(threadIdx.x));
    between_proxies();
  }
};

// One chunk of a part: `nth` of those that lie whole in its slice.
template <class P>
__device__ __forceinline__ u32 chunks_of(const P& one) {
  return (one.whole + CHUNK_CELLS - 1) / CHUNK_CELLS;
}
template <class P>
__device__ __forceinline__ u32 chunk_bytes(const P& one, u32 nth) {
  const u32 left = (one.whole - nth * CHUNK_CELLS) * 16;
  return left < CHUNK ? left : CHUNK;
}
__device__ __forceinline__ u32 chunks_in(const Parts<>&) { return 0; }
template <class P, class... R>
__device__ __forceinline__ u32 chunks_in(const Parts<P, R...>& all) {
  return chunks_of(all.head) + chunks_in(all.rest);
}

__device__ __forceinline__ void load_nth(const Parts<>&, u32, u32, u32) {}
template <class P, class... R>
__device__ __forceinline__ void load_nth(const Parts<P, R...>& all, u32 nth, u32 shared,
                                         u32 loaded) {
  const u32 mine = chunks_of(all.head);
  if (nth >= mine) return load_nth(all.rest, nth - mine, shared, loaded);
  const u64 from = all.head.srcs.head.base + static_cast<u64>(nth) * CHUNK;
  load_chunk(shared, from, chunk_bytes(all.head, nth), loaded);
}

// A destination that is added to, in no order.
template <class E, class T>
struct Added : T {
  template <class Lane>
  __device__ void put_words(Lane&, u32 cell, Vec v, u32 nbytes) const {
    const u64 low = v.x | static_cast<u64>(v.y) << 32;
    const u64 high = v.z | static_cast<u64>(v.w) << 32;
#pragma unroll 1
    for (u32 k = 0; k * E::size < nbytes; ++k) {
      const u64 half = k * E::size < 8 ? low : high;
      add_element<E>(T::base + cell * 16 + k * E::size, half >> (8 * (k * E::size % 8)));
    }
  }
};
template <class Lane, class T>
__device__ __forceinline__ Added<typename Lane::E, T> added(const Lane&, T dst) {
  return {dst};
}
template <class E, class T>
__device__ __forceinline__ void put_chunk(const Added<E, T>& dst, u64 offset, u32 shared,
                                          u32 nbytes) {
  add_chunk<E>(dst.base + offset, shared, nbytes);
}
template <class T>
__device__ __forceinline__ void put_chunk(const T& dst, u64 offset, u32 shared,
                                          u32 nbytes) {
  store_chunk(dst.base + offset, shared, nbytes);
}
__device__ __forceinline__ void store_all(const Operands<>&, u64, u32, u32) {}
template <class T, class... R>
__device__ __forceinline__ void store_all(const Operands<T, R...>& dsts, u64 offset,
                                          u32 shared, u32 nbytes) {
  put_chunk(dsts.head, offset, shared, nbytes);
  store_all(dsts.rest, offset, shared, nbytes);
}
__device__ __forceinline__ void store_nth(const Parts<>&, u32, u32) {}
template <class P, class... R>
__device__ __forceinline__ void store_nth(const Parts<P, R...>& all, u32 nth,
                                          u32 shared) {
  const u32 mine = chunks_of(all.head);
  if (nth >= mine) return store_nth(all.rest, nth - mine, shared);
  const u64 offset = static_cast<u64>(nth) * CHUNK;
  store_all(all.head.dsts, offset, shared, chunk_bytes(all.head, nth));
}

// Copy all whole chunks of all parts: asked for by one thread, `ahead` loads in flight.
template <class Lane, class... P>
__device__ __forceinline__ void carry(Lane& lane, const Parts<P...>& all) {
  using R = Ring<typename Lane::C>;
  const u32 total = chunks_in(all), first = lane.carried;
  u32 asked = 0;
#pragma unroll 1
  for (u32 nth = 0; nth < total && lane.ok; ++nth) {
#pragma unroll 1
    for (; asked < total && asked < nth + R::ahead; ++asked) {
      all_but_read<R::unread>();
      load_nth(all, asked, R::place(first + asked), R::barrier(first + asked));
    }
    Patience patience;
    while (lane.ok && !is_loaded(R::barrier(first + nth), (first + nth) / R::stages)) {
      const bool waits = patience.holds(lane.p, Lane::C::rank);
      if (!waits) lane.leave(Lane::C::rank, nth, total);
    }
    store_nth(all, nth, R::place(first + nth));
    end_group();
  }
  lane.carried = first + asked;
}

// Combine a part chunk by chunk: all threads, with one barrier a chunk.
template <class Lane, bool FINISH, class D, class S>
__device__ __forceinline__ void blend(Lane& lane, const Part<FINISH, D, S>& one) {
  using C = typename Lane::C;
  using E = typename Lane::E;
  using Op = typename Lane::Op;
  using R = Ring<C>;
  constexpr u32 N = Part<FINISH, D, S>::sources;
  constexpr u32 each = (CHUNK_CELLS + C::threads - 1) / C::threads;
  constexpr u32 room = (C::threads > 384 ? 4 : 16) / N;  // of the registers
  constexpr u32 depth = room == 0 ? 1 : each < room ? each : room;
  const u32 total = chunks_of(one);
#pragma unroll 1
  for (u32 nth = 0; nth < total; ++nth) {
    const u32 start = nth * CHUNK_CELLS, nbytes = chunk_bytes(one, nth);
    const u32 shared = R::place(nth);
#pragma unroll 1
    for (u32 cell = lane.thread; cell < nbytes / 16; cell += depth * C::threads) {
      Vec v[depth * N];
#pragma unroll
      for (u32 d = 0; d < depth; ++d) {
        const u32 at = cell + d * C::threads;
        if (at < nbytes / 16) peek_all(one.srcs, start + at, v + d * N);
      }
#pragma unroll
      for (u32 d = 0; d < depth; ++d) {
        const u32 at = cell + d * C::threads;
        if (at >= nbytes / 16) continue;
        const Vec raw = combine<E, Op, N>(v + d * N);
        store_shared(shared + at * 16, FINISH ? finish<E, Op, C::ranks>(raw) : raw);
      }
    }
    between_proxies_here();
    // Read, once all have met here: the stage that the next chunk is left in.
    if (lane.thread == 0) all_but_read<R::stages - 2>();
    lane.barrier();
    if (lane.thread == 0) {
      store_all(one.dsts, static_cast<u64>(nth) * CHUNK, shared, nbytes);
      end_group();
    }
  }
}

// Go on after the whole chunks: only words are left.
template <class Lane>
__device__ __forceinline__ void skip_whole(Parts<>&) {}
template <class Lane, class P, class... R>
__device__ __forceinline__ void skip_whole(Parts<P, R...>& all) {
  P& one = all.head;
  const u32 before = one.whole % Lane::C::threads;
  one.cell = one.whole + first_cell<Lane::C::threads>(one.cell, before);
  skip_whole<Lane>(all.rest);
}

// What the copy unit does as it is: one source, and no division. What it does once the
// threads have combined it: one value for several places.
template <class Lane, class P>
constexpr bool is_carried = P::sources == 1 && !(P::final && Lane::Op::averages);
template <class Lane, class P>
constexpr bool is_blended = P::sources > 1 && P::places > 1 &&
                            (P::all_final || !P::final || !Lane::Op::averages);

template <class Lane, class... P>
__device__ __forceinline__ void bulk_each(Lane& lane, const Parts<P...>& all);

template <class Lane, class... P>
__device__ __forceinline__ void bulk_move(Lane& lane, Parts<P...> all) {
  if constexpr ((is_carried<Lane, P> && ...)) {
    if (!lane.ok) return;
    begin_parts(lane, all);
    between_proxies();
    lane.barrier();
    if (lane.thread == 0) {
      carry(lane, all);
      all_stored();
    }
    skip_whole<Lane>(all);
    move_words(lane, all);
    between_proxies();
    lane.agree();
  } else {
    bulk_each(lane, all);
  }
}

// One part after the other.
template <class Lane, class P>
__device__ __forceinline__ void bulk_one(Lane& lane, const P& part) {
  Parts<P> one{part, {}};
  if constexpr (is_carried<Lane, P>) {
    bulk_move(lane, one);
  } else if constexpr (!is_blended<Lane, P>) {
    move(lane, one);
  } else if (lane.ok) {
    begin_parts(lane, one);
    between_proxies();
    lane.barrier();
    blend(lane, one.head);
    if (lane.thread == 0) all_stored();
    skip_whole<Lane>(one);
    move_words(lane, one);
    between_proxies();
    lane.barrier();
  }
}

template <class Lane, class... P>
__device__ __forceinline__ void bulk_each(Lane& lane, const Parts<P...>& all) {
  if constexpr (sizeof...(P) > 0) {
    bulk_one(lane, all.head);
    bulk_each(lane, all.rest);
  }
}

}  // namespace stretto
