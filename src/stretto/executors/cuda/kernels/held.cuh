// held.cuh -- rows that stay in registers from the move that completes them.
//
// Where a block's part of a row has few cells for each thread, the move that stores the
// result also leaves it with the thread that has it, and what else the epilogue reads is
// loaded while packets are awaited. Nothing is read again; blocks of one row tell each
// other their sums. Where the slices of a block are small, each has warps of its own
// (Slice::turn): a thread then keeps few rows of the block's. Of several cells, the result
// and the zeros of packet memory are stored when the sums are on their way: they are 16 to
// 32 KB of a block, and would be in front of the sums.
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
  __device__ u32 put(Lane&, u32 cell, Vec v) const {
    using W = typename Rows::W;
#pragma unroll
    for (u32 i = 0; i < W::rows * W::each; ++i) {
      const u32 b = i / W::each, k = i % W::each;
      const bool row = W::rows == 1 || rows->nth(b) == B;
      if (row && (W::each == 1 || rows->cell(b, k) == cell)) rows->kept[i].hold(v);
    }
    return SEEN;
  }
  template <class Lane>
  __device__ void close(Lane&, bool) const {}
};

// What a move that did not clear its packets leaves to be done.
template <u32 EACH, class Lane, class S>
__device__ __forceinline__ void clear(const Lane& lane, const Slice& s, const S& srcs) {
  constexpr u32 threads = Lane::C::threads;
  u32 cell = first_cell<threads>(lane.thread, s.turn);
#pragma unroll
  for (u32 k = 0; k < EACH; ++k, cell += threads) {
    if (lane.ok && cell < (s.nbytes + 15) / 16) done_all(srcs, cell);
  }
}

template <class F, class Lane>
struct Held : Batch<F, Lane> {
  using Base = Batch<F, Lane>;
  using W = typename Base::W;
  static_assert((W::each == 1 || W::rows == 1) && Base::whole, "generate.py sees to it");
  static constexpr bool spread = F::slots > 0;
  // Of several cells, weights wait until packets have come: registers are short before.
  static constexpr bool late = W::rows * W::each > F::along;

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
#pragma unroll
      for (u32 k = 0; k < W::each; ++k) {
        auto& one = this->kept[b * W::each + k];
        one = {};
        const u32 n = this->count(b, k);
        if (n == 0) continue;
        one.load_given(args, this->row[b], this->column(b, k), n, true);
        if (!late) one.load_along(args, this->column(b, k), n, true);
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
    for (u32 i = 0; i < W::rows * W::each; ++i) {
      const u32 b = i / W::each, k = i % W::each;
      if (this->count(b, k) == 0) continue;
      this->kept[i].store_result(this->at, this->row[b], this->column(b, k));
    }
  }
  template <class Meanwhile>
  __device__ __forceinline__ void conclude(Meanwhile meanwhile, u32 iteration) {
    if (F::near && iteration == 0) cluster_wait();
    // Sums in the block's memory: all have read those of the epoch before.
    if (F::share == 1 && iteration != 0) this->me.barrier();
#pragma unroll
    for (u32 i = 0; late && i < W::rows * W::each; ++i) {
      const u32 b = i / W::each, k = i % W::each, n = this->count(b, k);
      if (n > 0) this->kept[i].load_along(this->at, this->column(b, k), n, true);
    }
    this->know();
    this->template reduce<0>(meanwhile);
    this->store();
  }
};

}  // namespace stretto
