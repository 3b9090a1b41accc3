// board.cuh -- blocks that share a row: words of control memory.
//
// Each warp of a block posts what it has combined; all blocks of the row read what all
// posted, from the one place. A post says by itself that it has come: it carries the
// number of its exchange, 64 bits, and the value in every word that carries a part of
// it, so that no mixture of two posts is taken for one. A place is posted to again when
// everybody has read it (exchange.cuh), and nothing is ever cleared.
#pragma once

#include "abi.cuh"

namespace stretto {

__device__ __forceinline__ Vec post(u32 value, u64 number) {
  const u32 low = static_cast<u32>(number), high = static_cast<u32>(number >> 32);
  return {value, value ^ low, value ^ high, ~value};
}
__device__ __forceinline__ bool is_post(Vec v, u64 number) {
  const Vec want = post(v.x, number);
  return v.y == want.y && v.z == want.z && v.w == want.w;
}

// Where the blocks that begin with `first` post.
__device__ __forceinline__ Vec* board_of(const Params& p, int rank, u32 first) {
  return reinterpret_cast<Vec*>(p.control[rank] + SUMS) + first * (4 * BOARD);
}

}  // namespace stretto
