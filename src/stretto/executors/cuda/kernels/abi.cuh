// abi.cuh -- where words of control memory lie; abi.py beside this folder explains them.
#pragma once

#include "memory.cuh"
#include "words.cuh"

namespace stretto {

__device__ __forceinline__ u64* control_word(u64 base, u64 offset, u64 index = 0) {
  return reinterpret_cast<u64*>(base + offset) + index;
}

// Where `from`'s lane signals to a lane of this block.
__device__ __forceinline__ u64* flag_word(u64 base, u32 block, u32 lane, u32 from,
                                          u32 from_lane) {
  const u32 index = (block * MAX_LANES + lane) * MAX_LANES + from_lane;
  return control_word(base, FLAGS, index * MAX_RANKS + from);
}

}  // namespace stretto
