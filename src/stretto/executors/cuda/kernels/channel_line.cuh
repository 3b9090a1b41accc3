// channel_line.cuh -- 120 bytes of data and a 64-bit flag in one line of 128.
//
// Eight neighbouring threads of a warp call together, with cells 8k to 8k + 7 of line k:
// seven bring 16 bytes each, the eighth 8 (x and y of its value). They learn together
// whether the line is there. What is relied on is said in line.cuh; the rules for flags
// are those of packets.
#pragma once

#include "channel.cuh"
#include "line.cuh"

namespace stretto {

// Cell `cell` of the peer's lines that begin at byte `at`, a multiple of 128.
__device__ inline void MemoryChannel::put_line(u64 at, u32 cell, Vec value,
                                               u64 flag) const {
  if (cell % 8 == 7) {
    value.z = static_cast<u32>(flag);
    value.w = static_cast<u32>(flag >> 32);
  }
  Lines::store_part(reinterpret_cast<Vec*>(remote + at) + cell, value);
}

// Wait for our cell's line; false, for all eight: the deadline passed.
__device__ inline bool MemoryChannel::read_line(u64 at, u32 cell, u64 flag, Vec& value,
                                                int step) const {
  const Vec* p = reinterpret_cast<const Vec*>(local + at) + cell;
  Patience patience;
  while (true) {
    value = Lines::load_part(p);
    const u64 got = value.z | static_cast<u64>(value.w) << 32;
    if (__shfl_sync(Lines::group(), got == flag, 7, 8)) break;
    if (!Lines::all(patience.holds(*home, rank))) {
      return channel_gave_up(*home, rank, peer, A_LINE, step, got, flag);
    }
  }
  if (cell % 8 == 7) value.z = value.w = 0;
  return true;
}

}  // namespace stretto
