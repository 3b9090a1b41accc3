// exchange.cuh -- what the warps of a row tell each other: their sums.
//
// Warps of one block by shared memory; of several blocks by words of each other's shared
// memory where they are a cluster (cluster.cuh), else by a board in memory (board.cuh).
#pragma once

#include "walk.cuh"

namespace stretto {

// Of the rows that threads of a block have at a time.
template <class F, class Lane>
struct Exchange {
  using W = Walk<F, Lane::C::threads>;
  Lane& me;
  Span row[W::rows] = {};
  u32 turn = 0;
  u32 slot[W::rows] = {};  // which rows of the block: where threads have few of them
  bool lost = false;  // a block of the row never came

  __device__ __forceinline__ explicit Exchange(Lane& lane) : me(lane) {}

  // Which part of a row is the block's.
  __device__ u32 piece() const { return me.block % F::share; }
  // Whether a thread has one row at a time. Then all goes one by one, for a row that is
  // alone has nothing to wait beside: 0.5 us sooner than what is made for several.
  static constexpr bool alone = W::rows == 1;

  // What a warp has combined, for all threads that need it. Two turns of shared memory:
  // who still reads the one is waited for in the other.
  __device__ __forceinline__ void give(u32 b, u32 group, float total) {
    constexpr u32 own = W::groups / F::share;
    const u32 lane = me.thread % 32;
    if (group >= own) return;
    if constexpr (F::share == 1) {
      if (lane == 0) of_block<Groups>()[turn % 2][nth(b)][group] = total;
    } else if constexpr (F::near) {
      if (lane >= F::share || row[b].count == 0) return;
      auto& board = of_block<Board<W>>();
      u64& word = board[place()][nth(b)][piece() * own + group];
      tell_block<F::share>(board, word, lane, short_number() << 32 | as_bits(total));
    } else if (lane == 0 && row[b].count > 0) {
      store_relaxed(posted(b, piece() * own + group), post(as_bits(total), number()));
    }
  }
  // What a warp of some block has given to a row that is alone.
  template <class R>
  __device__ __forceinline__ float take(u32 group) {
    if constexpr (F::share == 1) {
      return of_block<Groups>()[turn % 2][nth(0)][group];
    } else if constexpr (F::near) {
      const u64& word = of_block<Board<W>>()[place()][nth(0)][group];
      u64 value = told(word);
      Patience patience;
      while (value >> 32 != short_number() && row[0].count > 0 && !lost) {
        lost = !patience.lasts(4 * me.p.deadline_ns);
        if (lost && me.ok) me.leave(Lane::C::rank, value, short_number());
        value = told(word);
      }
      return as_float(static_cast<u32>(value));
    } else {
      if (row[0].count == 0) return as_float(R::nothing);
      const Vec* word = posted(0, group);
      Vec found = load_relaxed(word);
      Patience patience;
      while (!is_post(found, number()) && !lost) {
        lost = !patience.lasts(4 * me.p.deadline_ns);
        if (lost && me.ok) me.leave(Lane::C::rank, found.y ^ found.x, number());
        found = load_relaxed(word);
      }
      return as_float(found.x);
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
  // All that the warps of rows have given: a group for each lane, and so on.
  template <class R>
  __device__ __forceinline__ void take_all(float (&leaves)[W::rows * W::warps]) {
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
          value = as_bits(of_block<Groups>()[turn % 2][nth(b)][group]);
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
  using Groups = float[2][W::slots][W::groups];
  // Turns of two epochs, two in each, have places of their own; and who posts in a turn
  // has read what was posted in the one before.
  __device__ u32 place() const { return (me.epoch & 1) * 2 + turn % 2; }
  __device__ u64 number() const { return (me.epoch + 1) << 2 | turn % 4; }
  __device__ u64 short_number() const {
    return (me.epoch << 16 | (turn + 1)) & 0xffffffffu;
  }
};

}  // namespace stretto
