// rows.cuh -- rows of a result on their way through a block: read, combined, stored.
//
// Cells are read once and kept in registers where there is room. Values of a row are
// combined by a tree whose order only the row's length decides, so every block of every
// rank, and NumPy, gets the same bits: elements of a cell from left to right, then
// neighbouring cells in pairs, pairs of pairs, and so on. The first five levels are a
// warp's, the rest go by shared memory, at one barrier for each reduction. Blocks may
// share a row, each a part of its cells, and tell each other their sums (exchange.cuh).
#pragma once

#include "exchange.cuh"
#include "trees.cuh"

namespace stretto {

struct Nothing {
  __device__ void operator()() const {}
};

// Some rows on their way through: what is known of each, and their cells.
template <class F, class Lane>
struct Batch : Exchange<F, Lane> {
  using Base = Exchange<F, Lane>;
  using W = typename Base::W;
  using Args = typename F::Args;
  using Base::alone, Base::me, Base::piece, Base::row, Base::turn;
  const Args& at;
  typename F::Values known[W::rows] = {};
  typename F::Cell kept[W::keep ? W::rows * W::each : 1];
  u32 shift[W::rows] = {};  // by how many threads cells are turned (tile.cuh)

  __device__ __forceinline__ Batch(Lane& lane, const Args& args)
      : Base(lane), at(args) {}

  __device__ u32 cell(u32 b, u32 k) const {
    constexpr u32 threads = Lane::C::threads;
    return first_cell<threads>(me.thread, shift[b]) + k * threads;
  }
  // Where a cell of the block's part is in the row.
  __device__ u32 column(u32 b, u32 k) const {
    return piece() * W::length + cell(b, k) * W::G;
  }
  // Whether cells are 16 bytes that can be moved as one: the host has seen to it.
  static constexpr bool whole = F::row % W::G == 0;
  // Elements of a cell that are in the row, or the block's part of it.
  __device__ u32 count(u32 b, u32 k) const {
    const u32 first = cell(b, k) * W::G, length = row[b].count;
    return first >= length ? 0 : length - first < W::G ? length - first : W::G;
  }
  __device__ __forceinline__ void read(u32 b, u32 k, typename F::Cell& into) const {
    const u32 n = count(b, k);
    if (n > 0) {
      into.template load<Lane::C::shared>(at, row[b], column(b, k), n, whole);
    }
  }
  __device__ __forceinline__ typename F::Floats floats(u32 b, u32 k) const {
    if constexpr (W::keep) return kept[b * W::each + k].widen();
    typename F::Cell again;
    read(b, k, again);
    return again.widen();
  }

  __device__ __forceinline__ void begin() {
    if constexpr (W::keep) {
#pragma unroll
      for (u32 i = 0; i < W::rows * W::each; ++i) {
        read(i / W::each, i % W::each, kept[i]);
      }
    }
    know();
  }
  __device__ __forceinline__ void know() {
#pragma unroll
    for (u32 b = 0; b < W::rows; ++b) {
      if (row[b].count > 0) known[b] = F::begin(at, row[b]);
    }
  }

  // This thread's part of a reduction, of one cell.
  template <class D>
  __device__ __forceinline__ float part(u32 b, u32 k) const {
    using R = typename D::R;
    const u32 n = count(b, k);
    if (alone && n == 0) return as_float(R::nothing);
    const typename F::Floats f = floats(b, k);
    float total = D::of(known[b], f, 0);
#pragma unroll
    for (u32 j = 1; j < W::G; ++j) {
      if (whole || j < n) total = R::both(total, D::of(known[b], f, j));
    }
    return n == 0 ? as_float(R::nothing) : total;
  }

  // One reduction, of a row that is alone; what can be done meanwhile, while its sums
  // are on their way.
  template <class D, class Meanwhile>
  __device__ __forceinline__ void one_by_one(Meanwhile meanwhile) {
    using R = typename D::R;
#pragma unroll(W::keep ? W::each : 1)
    for (u32 k = 0; k < W::each; ++k) {
      this->give(0, cell(0, k) / 32, warp_tree<R>(part<D>(0, k)));
    }
    meanwhile();
    if constexpr (F::share == 1) me.barrier();
    float some[W::warps];
#pragma unroll
    for (u32 i = 0; i < W::warps; ++i) {
      const u32 leaf = i * 32 + me.thread % 32;
      const float one = leaf < W::groups ? this->template take<R>(leaf) : as_float(R::nothing);
      some[i] = warp_tree<R>(one);
    }
    D::settle(known[0], tree<R>(some));
  }
  // The same of several rows: shuffles and polls of all of them side by side.
  template <class D, class Meanwhile>
  __device__ __forceinline__ void side_by_side(Meanwhile meanwhile) {
    using R = typename D::R;
    static_assert(W::keep, "else cells are read again, one by one");
    float totals[W::rows * W::each];
#pragma unroll
    for (u32 i = 0; i < W::rows * W::each; ++i) {
      totals[i] = part<D>(i / W::each, i % W::each);
    }
    warp_trees<R>(totals);
#pragma unroll
    for (u32 i = 0; i < W::rows * W::each; ++i) {
      this->give(i / W::each, cell(i / W::each, i % W::each) / 32, totals[i]);
    }
    meanwhile();
    if constexpr (F::share == 1) me.barrier();
    float leaves[W::rows * W::warps];
    this->template take_all<R>(leaves);
    warp_trees<R>(leaves);
#pragma unroll
    for (u32 b = 0; b < W::rows; ++b) {
      float some[W::warps];
#pragma unroll
      for (u32 i = 0; i < W::warps; ++i) some[i] = leaves[b * W::warps + i];
      D::settle(known[b], tree<R>(some));
    }
  }
  template <u32 I, class Meanwhile>
  __device__ __forceinline__ void reduce(Meanwhile meanwhile) {
    if constexpr (I < F::reductions) {
      using D = typename F::template Reduce<I>;
      if constexpr (alone) {
        one_by_one<D>(meanwhile);
      } else {
        side_by_side<D>(meanwhile);
      }
      // A warp with no cells says nothing by which others know that it has read.
      constexpr bool silent =
          F::slots == 0 && W::groups / F::share * 32 < Lane::C::threads;
      if constexpr (F::share > 1 && silent) me.barrier();
      ++turn;
      reduce<I + 1>(Nothing{});
    } else {
      meanwhile();
    }
  }

  // Store cells of outputs: those that no sum is in (FIRST), those with sums (LAST). An
  // output may replace an input, so cells that are read again are stored in one go.
  template <bool FIRST, bool LAST>
  __device__ __forceinline__ void store_cells() const {
    static_assert(W::keep || (FIRST && LAST), "inputs are read once");
#pragma unroll(W::keep ? W::each : 1)
    for (u32 k = 0; k < W::each; ++k) {
#pragma unroll
      for (u32 b = 0; b < W::rows; ++b) {
        const u32 n = count(b, k);
        if (n == 0) continue;
        const typename F::Floats f = floats(b, k);
        if constexpr (FIRST) {
          F::store_first(at, row[b], column(b, k), n, whole, known[b], f);
        }
        if constexpr (LAST) F::store(at, row[b], column(b, k), n, whole, known[b], f);
      }
    }
  }
  // Store what there is one of for each row.
  __device__ __forceinline__ void store_rows() const {
#pragma unroll
    for (u32 b = 0; b < W::rows; ++b) {
      const bool first = cell(b, 0) == 0 && piece() == 0;
      if (first && row[b].count > 0) F::store_row(at, row[b], known[b]);
    }
  }
};

}  // namespace stretto
