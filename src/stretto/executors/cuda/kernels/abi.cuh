// abi.cuh -- what the host and a kernel agree on. The same is said, and explained, in
// abi.py beside this folder; a test compiles the assertions below with its numbers.
#pragma once

#include "memory.cuh"

namespace stretto {

constexpr u32 MAX_RANKS = 16;
constexpr u32 MAX_BLOCKS = 256;
constexpr u32 MAX_LANES = 4;
constexpr u32 MAX_WORKERS = MAX_BLOCKS * MAX_LANES;
constexpr u32 CLERK = 32;
constexpr u32 ESCAPES = 1u << 17;
constexpr u32 BOARD = 64;

// Byte offsets in a rank's control memory.
constexpr u64 BROKEN = 0;
constexpr u64 ROLL = 128;
constexpr u64 LAUNCHES = 384;
constexpr u64 REQUESTS = 448;
constexpr u64 EPOCHS = 512;
constexpr u64 FLAGS = EPOCHS + 8 * MAX_WORKERS;
constexpr u64 SUMS = FLAGS + 8ull * MAX_BLOCKS * MAX_LANES * MAX_LANES * MAX_RANKS;
constexpr u64 ESCAPED = SUMS + 16ull * 4 * BOARD * MAX_BLOCKS;

// One rank's parameters; bases are addresses as this rank maps them, by rank.
struct Params {
  u64 input[MAX_RANKS];
  u64 output[MAX_RANKS];
  u64 stage[MAX_RANKS];
  u64 packets[MAX_RANKS];
  u64 control[MAX_RANKS];
  u64 record;
  u64 deadline_ns;
  u64 tile;
  u32 tiles;
  u32 fingerprint;
  u64 stage_unit;
  u64 packet_unit;
  u64 stage_half;
  u64 packet_half;
  u64 far;    // pinned: what ranks on other hosts write as they would in control memory
  u64 inbox;  // pinned: what they put into our staging
  u64 ring;   // pinned: requests to them
};
static_assert(sizeof(Params) == 728, "abi.py: PARAMS");

// Who was missing, in host memory; the first to give up writes it, once.
struct Record {
  u32 state;
  u32 kind;
  int rank, block, lane, thread, step, peer;
  u32 absent, differ, fingerprint, channel;
  u64 epoch, got, want, launch;
  u64 leave;  // written by the host: not 0 once everybody is to give up
};
static_assert(sizeof(Record) == 88, "abi.py: RECORD");

enum Kind : u32 { NONE = 0, TIMEOUT = 1, MISMATCH = 2, TOLD = 3, TOO_MANY = 4 };

// A word of somebody's control memory.
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
