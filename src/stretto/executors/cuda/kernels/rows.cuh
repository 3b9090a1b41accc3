// rows.cuh -- rows of a result on their way through a block: read, combined, stored.
//
// Cells are read once and kept in registers where there is room. Values of a row are
// combined by a tree whose order only the row's length decides, so every block of every
// rank, and NumPy, gets the same bits: elements of a cell from left to right, then
// neighbouring cells in pairs, pairs of pairs, and so on. The first five levels are a
// warp's, the rest go by shared memory, at one barrier for each reduction. Blocks may
// share a row, each a part of its cells, and tell each other their sums (board.cuh, or
// cluster.cuh where they are a cluster).
#pragma once

#include "trees.cuh"
#include "walk.cuh"

namespace stretto {

struct Nothing {
  __device__ void operator()() const {}
};

// Some rows on their way through: what is known of each, and their cells.
template <class F, class Lane>
struct Batch {
  using W = Walk<F, Lane::C::threads>;
  using Args = typename F::Args;
  Lane& me;
  const Args& at;
  Span row[W::rows] = {};
  typename F::Values known[W::rows] = {};
  typename F::Cell kept[W::keep ? W::rows * W::each : 1];
  u32 shift[W::rows] = {};  // by how many threads cells are turned (tile.cuh)
  u32 turn = 0;
  u32 slot[W::rows] = {};  // which rows of the block: where threads have few of them
  bool lost = false;  // a block of the row never came

  __device__ __forceinline__ Batch(Lane& lane, const Args& args) : me(lane), at(args) {}

  __device__ u32 cell(u32 b, u32 k) const {
    constexpr u32 threads = Lane::C::threads;
    return first_cell<threads>(me.thread, shift[b]) + k * threads;
  }
  // Which part of a row is the block's, and where a cell of it is in the row.
  __device__ u32 piece() const { return me.block % F::share; }
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
    if (!W::keep && n == 0) return as_float(R::nothing);
    const typename F::Floats f = floats(b, k);
    float total = D::of(known[b], f, 0);
#pragma unroll
    for (u32 j = 1; j < W::G; ++j) {
      if (whole || j < n) total = R::both(total, D::of(known[b], f, j));
    }
    return n == 0 ? as_float(R::nothing) : total;
  }

  // What a warp has combined, for all threads that need it. Two turns of shared memory:
  // who still reads the one is waited for in the other.
  __device__ __forceinline__ void give(u32 b, u32 group, float total) {
    constexpr u32 own = W::groups / F::share;
    const u32 lane = me.thread % 32;
    if (group >= own) return;
    if constexpr (F::share == 1) {
      if (lane == 0) of_block<Groups>()[turn % 2][b][group] = total;
    } else if constexpr (F::near) {
      if (lane >= F::share || row[b].count == 0) return;
      auto& board = of_block<Board<W>>();
      u64& word = board[place()][nth(b)][piece() * own + group];
      tell_block<F::share>(board, word, lane, short_number() << 32 | as_bits(total));
    } else if (lane == 0 && row[b].count > 0) {
      store_relaxed(posted(b, piece() * own + group), post(as_bits(total), number()));
    }
  }
  // What a warp of some block has given, and whether it has.
  struct Heard {
    u32 value;
    bool there;
  };
  __device__ __forceinline__ Heard hear(u32 b, u32 group) const {
    const bool any = group < W::groups && row[b].count > 0;
    const u32 at = group < W::groups ? group : 0;
    if constexpr (F::near) {
      const u64 word = told(of_block<Board<W>>()[place()][nth(b)][at]);
      return {static_cast<u32>(word), !any || word >> 32 == short_number()};
    } else {
      const Vec word = load_relaxed(posted(b, at));
      return {word.x, !any || is_post(word, number())};
    }
  }
  // All that the warps of a row have given: a group for each lane, and so on.
  template <class R>
  __device__ __forceinline__ void take(float (&leaves)[W::rows * W::warps]) {
    const u32 lane = me.thread % 32;
    Patience patience;
    bool missing;
    do {
      missing = false;
#pragma unroll
      for (u32 i = 0; i < W::rows * W::warps; ++i) {
        const u32 b = i / W::warps, group = i % W::warps * 32 + lane;
        u32 value = R::nothing;
        if constexpr (F::share > 1) {
          const Heard heard = hear(b, group);
          value = heard.value, missing |= !heard.there;
        } else if (group < W::groups) {
          value = as_bits(of_block<Groups>()[turn % 2][b][group]);
        }
        leaves[i] = as_float(group < W::groups ? value : R::nothing);
      }
      // Also when peers are lost, for this block's neighbours go on: they come as soon
      // as they have given up too, and in a cluster must not write to a block that has
      // ended.
      if (missing) lost = !patience.lasts(4 * me.p.deadline_ns);
    } while (missing && !lost);
    if (lost && me.ok) me.leave(Lane::C::rank, 0, 0);
  }
  __device__ u32 nth(u32 b) const { return F::slots > 0 ? slot[b] : b; }
  __device__ __forceinline__ Vec* posted(u32 b, u32 group) const {
    const u32 at = (place() * W::slots + nth(b)) * W::groups + group;
    return board_of(me.p, Lane::C::rank, me.block - piece()) + at;
  }
  using Groups = float[2][W::rows][W::groups];
  // Turns of two epochs, two in each, have places of their own; and who posts in a turn
  // has read what was posted in the one before.
  __device__ u32 place() const { return (me.epoch & 1) * 2 + turn % 2; }
  __device__ u64 number() const { return (me.epoch + 1) << 2 | turn % 4; }
  __device__ u64 short_number() const {
    return (me.epoch << 16 | (turn + 1)) & 0xffffffffu;
  }

  // All reductions; what can be done meanwhile, while the first sums are on their way.
  template <u32 I, class Meanwhile>
  __device__ __forceinline__ void reduce(Meanwhile meanwhile) {
    if constexpr (I < F::reductions) {
      using D = typename F::template Reduce<I>;
      using R = typename D::R;
      constexpr u32 many = W::keep ? W::rows * W::each : 1;  // at once
      static_assert(W::keep || W::rows == 1, "else cells are read again, one by one");
#pragma unroll 1
      for (u32 first = 0; first < W::rows * W::each; first += many) {
        float totals[many];
#pragma unroll
        for (u32 i = 0; i < many; ++i) {
          const u32 b = W::keep ? i / W::each : 0, k = W::keep ? i % W::each : first;
          totals[i] = part<D>(b, k);
        }
        warp_trees<R>(totals);
#pragma unroll
        for (u32 i = 0; i < many; ++i) {
          const u32 b = W::keep ? i / W::each : 0, k = W::keep ? i % W::each : first;
          give(b, cell(b, k) / 32, totals[i]);
        }
      }
      meanwhile();
      if constexpr (F::share == 1) me.barrier();
      float leaves[W::rows * W::warps];
      take<R>(leaves);
      warp_trees<R>(leaves);
#pragma unroll
      for (u32 b = 0; b < W::rows; ++b) {
        float some[W::warps];
#pragma unroll
        for (u32 i = 0; i < W::warps; ++i) some[i] = leaves[b * W::warps + i];
        D::settle(known[b], tree<R>(some));
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

  __device__ __forceinline__ void store() const {
#pragma unroll(W::keep ? W::each : 1)
    for (u32 k = 0; k < W::each; ++k) {
#pragma unroll
      for (u32 b = 0; b < W::rows; ++b) {
        const u32 n = count(b, k);
        if (n == 0) continue;
        F::store(at, row[b], column(b, k), n, whole, known[b], floats(b, k));
      }
    }
#pragma unroll
    for (u32 b = 0; b < W::rows; ++b) {
      const bool first = cell(b, 0) == 0 && piece() == 0;
      if (first && row[b].count > 0) F::store_row(at, row[b], known[b]);
    }
  }
};

}  // namespace stretto
