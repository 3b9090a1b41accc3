// held.cuh -- rows that stay in registers from the move that completes them.
//
// Where a block's part of a row has a cell for each thread at most, the move that stores
// the result also leaves it with the thread that has it, and what else the epilogue reads
// is loaded while packets are awaited. Nothing is read again: warps tell each other their
// sums, and outputs without sums are stored meanwhile. Where the slices of a block are
// small, each has warps of its own (Slice::turn): a thread then keeps few rows of them.
// Of several rows, the result and the zeros of packet memory are stored when the sums are
// on their way: they are 16 to 32 KB of a block, and would be in front of the sums.
#pragma once

#include "epilogue.cuh"

namespace stretto {

// A destination: the thread's own registers.
template <class Rows, u32 B>
struct Hold {
  Rows* rows;
  static constexpr bool finished = true, worded = false;
  static constexpr int peer = -1;

  __device__ bool aligned() const { return true; }
  __device__ void shift(const Slice&) {}
  template <class Lane>
  __device__ u32 put(Lane&, u32, Vec v) const {
#pragma unroll
    for (u32 b = 0; b < Rows::W::rows; ++b) {
      if (Rows::W::rows == 1 || rows->nth(b) == B) rows->kept[b].hold(v);
    }
    return SEEN;
  }
  template <class Lane>
  __device__ void close(Lane&, bool) const {}
};

// What a move that did not clear its packets leaves to be done.
template <class Lane, class S>
__device__ __forceinline__ void clear(const Lane& lane, const Slice& s, const S& srcs) {
  const u32 cell = first_cell<Lane::C::threads>(lane.thread, s.turn);
  if (lane.ok && cell < (s.nbytes + 15) / 16) done_all(srcs, cell);
}

template <class F, class Lane>
struct Held : Batch<F, Lane> {
  using Base = Batch<F, Lane>;
  using W = typename Base::W;
  static_assert(W::each == 1 && Base::whole, "generate.py sees to it");
  static constexpr bool spread = F::slots > 0;
  // Of several rows, weights wait until packets have come: registers are short before.
  static constexpr bool late = W::rows > 1;

  // Slices of the result, in order, and by how much their cells are turned.
  template <u32 N>
  __device__ __forceinline__ Held(Lane& lane, const typename F::Args& args,
                                  const Span (&spans)[N], const u32 (&turns)[N])
      : Base(lane, args) {
    static_assert(N == W::slots, "a row of each slice");
    u32 taken = 0;
#pragma unroll
    for (u32 b = 0; b < N; ++b) {
      const u32 cell = first_cell<Lane::C::threads>(lane.thread, turns[b]);
      const bool has = cell < W::cells;
#pragma unroll
      for (u32 i = 0; i < W::rows; ++i) {
        if (spread ? has && taken == i : b == i) {
          this->slot[i] = b, this->shift[i] = turns[b], this->row[i] = spans[b];
        }
      }
      taken += has;
    }
#pragma unroll
    for (u32 b = 0; b < W::rows; ++b) {
      this->row[b].element -= static_cast<u64>(this->piece()) * W::length;
      this->kept[b] = {};
      const u32 n = this->count(b, 0);
      if (n > 0) {
        this->kept[b].load_given(args, this->row[b], this->column(b, 0), n, true);
        if (!late) this->kept[b].load_along(args, this->column(b, 0), n, true);
      }
    }
  }
  template <u32 B>
  __device__ __forceinline__ Hold<Held, B> hold() {
    return {this};
  }
  // What the moves have left to us (generate.py).
  __device__ __forceinline__ void store_results() const {
#pragma unroll
    for (u32 b = 0; b < W::rows; ++b) {
      if (this->count(b, 0) == 0) continue;
      this->kept[b].store_result(this->at, this->row[b], this->column(b, 0));
    }
  }
  template <class Meanwhile>
  __device__ __forceinline__ void conclude(Meanwhile meanwhile, u32 iteration) {
    if (F::near && iteration == 0) cluster_wait();
    // In a block alone: all have read the sums of the epoch before.
    if (F::share == 1 && iteration != 0) this->me.barrier();
#pragma unroll
    for (u32 b = 0; late && b < W::rows; ++b) {
      const u32 n = this->count(b, 0);
      if (n > 0) this->kept[b].load_along(this->at, this->column(b, 0), n, true);
    }
    this->know();
    this->template reduce<0>([&] {
      meanwhile();
      this->template store_cells<true, false>();
    });
    this->template store_cells<false, true>();
    this->store_rows();
  }
};

}  // namespace stretto
