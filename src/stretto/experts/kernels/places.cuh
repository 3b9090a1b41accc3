// places.cuh -- what dispatch and combine share: where rows lie, and that all have come.
//
// Every rank has two halves of memory that peers write, used in turn. In a half each peer
// has a part of its own, of a row for every token that it may have: no routing can
// overflow it, and nobody asks anybody for a place. When a block has stored its rows it
// tells every rank so, in a packet with the epoch as flag, after a fence; who has the
// packets of all blocks of all ranks has all rows. Whoever starts epoch e + 2 knows that
// all have left epoch e: it has heard all of them in e + 1, which they began after e.
#pragma once

#include "channel.cuh"
#include "element.cuh"

#ifndef STRETTO_SHARED
#define STRETTO_SHARED(type, name) __shared__ type name
#endif

namespace stretto {

constexpr u32 WARPS = THREADS / 32;
constexpr u32 VECS = HIDDEN * Element::size / 16;        // of a row as it was
constexpr u32 ROW_VECS = QUANTISED ? HIDDEN / 16 : VECS;  // of a row under way
constexpr u32 SEGMENT = 128;                              // vectors that a warp moves at once
constexpr u32 PIECES = SEGMENT / 32;
constexpr u32 SEGMENTS = (VECS + SEGMENT - 1) / SEGMENT;
constexpr int GROUPS = QUANTISED ? HIDDEN / 128 : 0;
constexpr u64 PACKETS = u64(RANKS) * BLOCKS * 16;  // bytes of a set: one of each block
constexpr u32 SLOTS = RANKS * MAX_TOKENS;
enum Layout : u32 { BY_TOKEN, BY_EXPERT, BY_RANK };
constexpr u32 NOBODYS = 0xffffffffu;

__device__ __forceinline__ u32 least(u32 a, u32 b) { return a < b ? a : b; }

// Tell every rank that this block's rows are there; `said` is 0, or what it refuses.
__device__ __forceinline__ void tell_all(const MemoryChannel* mine, u32 rank, u64 at,
                                         u64 epoch, u64 said) {
  __syncthreads();
  if (threadIdx.x < RANKS) {
    fence();
    mine[threadIdx.x].put_packet(at, rank * BLOCKS + blockIdx.x, said,
                                 static_cast<u32>(epoch));
  }
}

// Wait until all blocks of all ranks have told; false: leave. A rank that refuses its
// ids is told of here, by every rank.
__device__ __forceinline__ bool hear_all(const MemoryChannel* mine, u64 at, u64 epoch,
                                         int step) {
  bool ok = true;
  for (u32 i = threadIdx.x; i < RANKS * BLOCKS && ok; i += THREADS) {
    const MemoryChannel& from = mine[i / BLOCKS];
    u64 said = 0;
    ok = from.read_packet(at, i, static_cast<u32>(epoch), said, step);
    if (ok && said != 0) {
      const u32 where = static_cast<u32>(said) - 1;
      const i64 id = static_cast<int>(said >> 32);
      ok = channel_gave_up(*from.home, from.rank, from.peer, A_CHOICE,
                           static_cast<int>(where), static_cast<u64>(id), EXPERTS);
    }
  }
  fence();
  return __syncthreads_and(ok);
}

// Which rank a row is of, of those that came, and its slot there; `ends` by rank.
struct Came {
  u32 source, slot, line;  // line: of ids and weights
};
__device__ __forceinline__ Came came(const u32* ends, u32 row) {
  u32 source = 0;
  while (row >= ends[source]) ++source;
  const u32 slot = row - (source == 0 ? 0 : ends[source - 1]);
  return {source, slot, LAYOUT == BY_RANK ? source * MAX_TOKENS + slot : row};
}

// Add the elements of a vector, times a weight, product and sum rounded.
__device__ __forceinline__ void add_vec(float (&total)[Element::lanes], const Vec& v,
                                        float weight) {
  float part[Element::lanes];
  Element::unpack(v, part);
#pragma unroll
  for (u32 i = 0; i < Element::lanes; ++i) total[i] += part[i] * weight;
}

}  // namespace stretto
