// rows.cuh -- rows of a result on their way through a block: read, combined, stored.
//
// Cells are read once and kept in registers where there is room. Values of a row are
// combined by a tree whose order only the row's length decides, so every block of every
// rank, and NumPy, gets the same bits: elements of a cell from left to right, then
// neighbouring cells in pairs, pairs of pairs, and so on. The first five levels are a
// warp's, the rest go by shared memory, at one barrier for each reduction.
#pragma once

#include "cells.cuh"
#include "lane.cuh"

namespace stretto {

// One of it for the block.
template <class T>
__device__ __forceinline__ T& of_block() {
  __shared__ T one;
  return one;
}

// Elements of the result, counted from its first: a slice of it, or a row; 0: nothing.
struct Span {
  u64 element;
  u32 count;
};

template <class Lane>
__device__ __forceinline__ Span span(const Lane&, const Slice& s, i64 first) {
  constexpr u32 size = Lane::E::size;
  return {static_cast<u64>(first) + s.start / size, s.nbytes / size};
}

// Reductions: what they begin with, and how two become one.
struct RowSum {
  static constexpr u32 nothing = 0;
  __device__ static float both(float a, float b) { return a + b; }
};
struct RowMax {
  static constexpr u32 nothing = 0xff800000u;
  __device__ static float both(float a, float b) { return Max::apply(a, b); }
};

// Neighbours in pairs, pairs of pairs: the same in every lane.
template <class R>
__device__ __forceinline__ float warp_tree(float value) {
#pragma unroll
  for (int d = 1; d < 32; d *= 2) {
    value = R::both(value, __shfl_xor_sync(~0u, value, d));
  }
  return value;
}

template <class R, u32 COUNT>
__device__ __forceinline__ float tree(float (&part)[COUNT]) {
#pragma unroll
  for (u32 step = 1; step < COUNT; step *= 2) {
#pragma unroll
    for (u32 i = 0; i < COUNT; i += 2 * step) {
      const float other = i + step < COUNT ? part[i + step] : as_float(R::nothing);
      part[i] = R::both(part[i], other);
    }
  }
  return part[0];
}

template <u32 I, class First, class... Rest>
struct Nth : Nth<I - 1, Rest...> {};
template <class First, class... Rest>
struct Nth<0, First, Rest...> {
  using type = First;
};

// How a block of THREADS goes through rows of F: cells of a thread, rows at a time, and
// whether cells are kept (else read again in every pass).
template <class F, u32 THREADS>
struct Walk {
  static constexpr u32 G = F::cell, cells = (F::row + G - 1) / G;
  static constexpr u32 groups = (cells + 31) / 32;
  static constexpr u32 each = (cells + THREADS - 1) / THREADS;
  static constexpr u32 words = each * (sizeof(typename F::Cell) / 4);
  static constexpr u32 share = 512 / ((THREADS + CLERK + 127) / 128);
  static constexpr u32 registers = share < 255 ? share : 255;
  static constexpr u32 room = registers < 80 ? 24 : registers - 56;
  static constexpr bool keep = words <= room;
  static constexpr u32 rows = !keep || room / words < 4 ? 1 : room / words < 8 ? 2 : 4;
};

// Some rows on their way through: what is known of each, and their cells.
template <class F, class Lane>
struct Batch {
  using W = Walk<F, Lane::C::threads>;
  using Args = typename F::Args;
  Lane& me;
  const Args& at;
  Span row[W::rows];
  typename F::Values known[W::rows];
  typename F::Cell kept[W::keep ? W::rows * W::each : 1];
  u32 turn = 0;

  __device__ __forceinline__ Batch(Lane& lane, const Args& args) : me(lane), at(args) {}

  __device__ u32 cell(u32 k) const { return me.thread + k * Lane::C::threads; }
  // Whether cells are 16 bytes that can be moved as one: the host has seen to it.
  static constexpr bool whole = F::row % W::G == 0;
  // Elements of a cell that are in the row.
  __device__ u32 count(u32 b, u32 k) const {
    const u32 first = cell(k) * W::G, length = row[b].count;
    return first >= length ? 0 : length - first < W::G ? length - first : W::G;
  }
  __device__ __forceinline__ void read(u32 b, u32 k, typename F::Cell& into) const {
    const u32 n = count(b, k);
    if (n > 0) {
      into.template load<Lane::C::shared>(at, row[b], cell(k) * W::G, n, whole);
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
    if (n == 0) return as_float(R::nothing);
    const typename F::Floats f = floats(b, k);
    float total = D::of(known[b], f, 0);
#pragma unroll
    for (u32 j = 1; j < W::G; ++j) {
      if (whole || j < n) total = R::both(total, D::of(known[b], f, j));
    }
    return total;
  }

  template <u32 I>
  __device__ __forceinline__ void reduce() {
    if constexpr (I < F::reductions) {
      using D = typename F::template Reduce<I>;
      using R = typename D::R;
      using Groups = float[2][W::rows][W::groups];
      float(&groups)[W::rows][W::groups] = of_block<Groups>()[turn];
#pragma unroll(W::keep ? W::each : 1)
      for (u32 k = 0; k < W::each; ++k) {
#pragma unroll
        for (u32 b = 0; b < W::rows; ++b) {
          const float total = warp_tree<R>(part<D>(b, k));
          const u32 group = cell(k) / 32;
          if (me.thread % 32 == 0 && group < W::groups) groups[b][group] = total;
        }
      }
      me.barrier();
#pragma unroll
      for (u32 b = 0; b < W::rows; ++b) {
        constexpr u32 warps = (W::groups + 31) / 32;
        float some[warps];
#pragma unroll
        for (u32 i = 0; i < warps; ++i) {
          const u32 leaf = i * 32 + me.thread % 32;
          some[i] = warp_tree<R>(leaf < W::groups ? groups[b][leaf]
                                                  : as_float(R::nothing));
        }
        D::settle(known[b], tree<R>(some));
      }
      turn ^= 1;  // who is still reading is waited for at the next barrier
      reduce<I + 1>();
    }
  }

  __device__ __forceinline__ void store() const {
#pragma unroll(W::keep ? W::each : 1)
    for (u32 k = 0; k < W::each; ++k) {
#pragma unroll
      for (u32 b = 0; b < W::rows; ++b) {
        const u32 n = count(b, k);
        if (n == 0) continue;
        F::store(at, row[b], cell(k) * W::G, n, whole, known[b], floats(b, k));
      }
    }
#pragma unroll
    for (u32 b = 0; b < W::rows; ++b) {
      if (me.thread == 0 && row[b].count > 0) F::store_row(at, row[b], known[b]);
    }
  }
};

}  // namespace stretto
