// combine.cuh -- each token's rows back, and their sum: one kernel.
//
// A unit of work is a part of a row. In order "rank" a rank adds its choices' rows, times
// their weights, and stores the sum where the token came from; there the sums of ranks
// are added in order of ranks. In order "k" rows go back as they are, each to its choice's
// place, and are weighed and added there, as one rank alone would.
#pragma once

#include "dispatch.cuh"

namespace stretto {

constexpr u32 AT_ONCE = 4;    // lines on their way to a warp
constexpr u32 LANE_VECS = 4;  // of each
constexpr u32 PART = 32 * LANE_VECS, PARTS = (VECS + PART - 1) / PART;
constexpr u32 MOST_LINES = CHOICES > RANKS ? CHOICES : RANKS;

struct CombineShared {
  u32 rows[RANKS];  // that came of each
  int lines[WARPS * MOST_LINES];
  u32 words[WARPS * MOST_LINES];
};
__device__ __forceinline__ Kept of_warp(CombineShared& s) {
  const u32 first = threadIdx.x / 32 * MOST_LINES;
  return {s.lines + first, s.words + first};
}

__device__ __forceinline__ void send_back(const CombineCall& call, CombineShared& s,
                                          const MemoryChannel* mine, u64 half) {
  const u32 warp = blockIdx.x * WARPS + threadIdx.x / 32, lane = threadIdx.x % 32;
  const Kept kept = of_warp(s);
  u32 most = 0;
  for (u32 q = 0; q < RANKS; ++q) {
    if (s.rows[q] > most) most = s.rows[q];
  }
  // A row of each rank in turn: links are busy from the first row to the last.
  for (u32 u = warp; u < most * RANKS * PARTS; u += WARPS * BLOCKS) {
    const u32 source = (call.rank + u / PARTS) % RANKS, slot = u / PARTS / RANKS;
    if (slot >= s.rows[source]) continue;
    const Came row{source, slot, line_of(s.rows, source, slot)};
    const u32 start = u % PARTS * PART + lane;
    Vec* back = reinterpret_cast<Vec*>(mine[source].remote + half) + start;
    Vec* line = back + (call.rank * MAX_TOKENS + slot) * u64(VECS);
    if constexpr (LAYOUT != BY_EXPERT) {
      const int from = static_cast<int>(row.line);
      take_lines<1, LANE_VECS, false>(
          call.rows, &from, 1, start,
          [&](u32, u32 k, const Vec& v) { store_relaxed(line + 32 * k, v); });
    } else if constexpr (!ORDER_K) {
      float total[LANE_VECS][Element::lanes] = {};
      const u32 count = keep_choices(kept, call, row);
      add_lines<AT_ONCE, false>(total, call.rows, kept, count, start);
#pragma unroll
      for (u32 k = 0; k < LANE_VECS; ++k) {
        if (start + 32 * k < VECS) store_relaxed(line + 32 * k, Element::pack(total[k]));
      }
    } else {
      const u32 first = call.tokens_of[row.line] * CHOICES;
      const u32 count = keep_choices(kept, call, row);
      take_lines<AT_ONCE, LANE_VECS, false>(
          call.rows, kept.lines, count, start, [&](u32 j, u32 k, const Vec& v) {
            store_relaxed(back + u64(first + kept.words[j]) * VECS + 32 * k, v);
          });
    }
  }
}

// Tell every rank that this block's rows are there, and wait until all blocks of all ranks
// have told; false: leave.
__device__ __forceinline__ bool all_came_back(const MemoryChannel* mine, u32 rank, u64 at,
                                              u32 flag) {
  __syncthreads();
  if (threadIdx.x < RANKS) {
    fence();
    mine[threadIdx.x].put_packet(at, rank * BLOCKS + blockIdx.x, 0, flag);
  }
  bool ok = true;
  for (u32 i = threadIdx.x; i < RANKS * BLOCKS && ok; i += THREADS) {
    u64 none = 0;
    ok = mine[i / BLOCKS].read_packet(at, i, flag, none, 2);
  }
  fence();
  return __syncthreads_and(ok);
}

// The sum of what came back for each token.
__device__ __forceinline__ void sum_up(const CombineCall& call, CombineShared& s,
                                       u64 here) {
  const u32 warp = blockIdx.x * WARPS + threadIdx.x / 32, lane = threadIdx.x % 32;
  const Vec* rows = reinterpret_cast<const Vec*>(here);
  const Kept kept = of_warp(s);
  constexpr u32 all = ORDER_K ? CHOICES : RANKS, many = all < AT_ONCE ? all : AT_ONCE;
  for (u32 u = warp; u < call.tokens * PARTS; u += WARPS * BLOCKS) {
    const u32 t = u / PARTS, start = u % PARTS * PART + lane;
    const u32 count = keep_lines(kept, all, [&](u32 p, int& line, u32& word) {
      if constexpr (ORDER_K) {
        const u32 at = t * CHOICES + p;
        word = as_bits(call.own_weights == nullptr ? 1.0f : call.own_weights[at]);
        line = call.own_ids[at] < 0 ? -1 : static_cast<int>(at);
      } else {
        const int slot = call.slots[t * RANKS + p];
        word = as_bits(1.0f);
        line = slot < 0 ? -1 : static_cast<int>(p * MAX_TOKENS) + slot;
      }
    });
    float total[LANE_VECS][Element::lanes] = {};
    add_lines<many, true>(total, rows, kept, count, start);
#pragma unroll
    for (u32 k = 0; k < LANE_VECS; ++k) {
      const u32 index = start + 32 * k;
      if (index < VECS) {
        store_plain(call.out + u64(t) * VECS + index, Element::pack(total[k]));
      }
    }
  }
}

__device__ __forceinline__ void combine_rows(const CombineCall& call, CombineShared& s) {
  const MemoryChannel* mine = call.channels + blockIdx.x * RANKS;
  const u64 epoch = call.epochs[blockIdx.x] + 1, half = (epoch & 1) * BACK_HALF;
  if (threadIdx.x < RANKS) s.rows[threadIdx.x] = static_cast<u32>(call.sources[threadIdx.x]);
  __syncthreads();
  send_back(call, s, mine, half);
  const u64 at = BACK_DONE_AT + (epoch & 1) * PACKETS;
  if (!all_came_back(mine, call.rank, at, static_cast<u32>(epoch))) return;
  sum_up(call, s, mine[call.rank].local + half);
  __syncthreads();
  if (threadIdx.x == 0) {
    call.epochs[blockIdx.x] = epoch;
    call.blocks[blockIdx.x * BLOCK_WORDS + COMBINED] = call.dispatches[blockIdx.x];
  }
}

}  // namespace stretto

extern "C" __global__ void __launch_bounds__(stretto::THREADS)
    stretto_combine(const stretto::CombineCall call) {
  STRETTO_SHARED(stretto::CombineShared, shared);
  stretto::combine_rows(call, shared);
}
