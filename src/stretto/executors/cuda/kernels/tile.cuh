// tile.cuh -- which part of an atom is this block's in this epoch, and whose thread's.
//
// Block b, iteration t takes elements [(t*blocks + b) * tile, + tile) of every atom.
// Cell i of that slice (16 bytes of it, the last one perhaps less) belongs to thread
// (i + turn) mod threads *in every step and on every rank*. So whatever a thread reads
// in its own rank's memory it has written itself, and what it finds in a packet was sent
// by the thread of its own number: order within a thread is all the order that steps of
// a lane need. `turn` differs between atoms that are moved at the same time, so that
// small moves run side by side in different warps.
#pragma once

#include "abi.cuh"

namespace stretto {

struct Slice {
  u64 start;   // bytes from the atom's first element
  u32 nbytes;  // 0 where the atom is shorter
  u32 turn;
};

// A slice is less than 4 GB, so its elements fit 32 bits; where it starts may not.
template <u32 SIZE>
__device__ __forceinline__ Slice slice_of(const Params& p, i64 atom, u32 index,
                                          u32 turn) {
  const u32 tile = static_cast<u32>(p.tile);
  const i64 start = static_cast<i64>(static_cast<u64>(index) * tile);
  const i64 left = atom - start;
  const u32 count = left < 0 ? 0 : left < tile ? static_cast<u32>(left) : tile;
  return {static_cast<u64>(start) * SIZE, count * SIZE, turn};
}

template <u32 THREADS>
__device__ __forceinline__ u32 first_cell(u32 thread, u32 turn) {
  return thread >= turn ? thread - turn : thread + THREADS - turn;
}

// What a vector that nobody has to wait for looks like; one that is not there is 0.
constexpr u32 SEEN = ~0u;
__device__ __forceinline__ u32 smaller(u32 a, u32 b) { return a < b ? a : b; }

}  // namespace stretto
