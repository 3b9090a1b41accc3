// combine.cuh -- each token's rows back, and their sum: one kernel.
//
// A unit of work is a part of a row. In order "rank" a rank adds its choices' rows, times
// their weights, and stores the sum where the token came from; there the sums of ranks
// are added in order of ranks. In order "k" rows go back as they are, each to its choice's
// place, and are weighed and added there, as one rank alone would.
#pragma once

#include "dispatch.cuh"

namespace stretto {

struct CombineShared {
  u32 ends[RANKS];
};

// A part of a row that came, back to where it came from.
__device__ __forceinline__ void send_sum(const CombineCall& call, u64 back,
                                         const Came& row, u32 start) {
  float total[PIECES][Element::lanes] = {};
  for (u32 j = 0; j < CHOICES; ++j) {
    const u64 at = u64(row.line) * CHOICES + j;
    if (call.ids[at] < 0) continue;
    const Vec* from = call.rows + u64(call.places[at]) * VECS;
    const float weight = call.weights == nullptr ? 1.0f : call.weights[at];
#pragma unroll
    for (u32 k = 0; k < PIECES; ++k) {
      if (start + 32 * k < VECS) {
        add_vec(total[k], load_plain(from + start + 32 * k), weight);
      }
    }
  }
  Vec* to = reinterpret_cast<Vec*>(back) + (call.rank * MAX_TOKENS + row.slot) * u64(VECS);
#pragma unroll
  for (u32 k = 0; k < PIECES; ++k) {
    if (start + 32 * k < VECS) store_relaxed(to + start + 32 * k, Element::pack(total[k]));
  }
}

// The same of a row as it is: to line `to` there.
__device__ __forceinline__ void send_row(const CombineCall& call, u64 back, u64 from,
                                         u64 to, u32 start) {
  Vec v[PIECES];
#pragma unroll
  for (u32 k = 0; k < PIECES; ++k) {
    const u32 index = start + 32 * k;
    if (index < VECS) v[k] = load_plain(call.rows + from * VECS + index);
  }
#pragma unroll
  for (u32 k = 0; k < PIECES; ++k) {
    const u32 index = start + 32 * k;
    if (index < VECS) store_relaxed(reinterpret_cast<Vec*>(back) + to * VECS + index, v[k]);
  }
}

__device__ __forceinline__ void send_back(const CombineCall& call, const u32* ends,
                                          const MemoryChannel* mine, u64 half) {
  const u32 warp = blockIdx.x * WARPS + threadIdx.x / 32, lane = threadIdx.x % 32;
  const u32 rows = ends[RANKS - 1];
  for (u32 u = warp; u < rows * SEGMENTS; u += WARPS * BLOCKS) {
    const Came row = came(ends, u / SEGMENTS);
    const u32 start = u % SEGMENTS * SEGMENT + lane;
    const u64 back = mine[row.source].remote + half;
    if (LAYOUT != BY_EXPERT) {
      send_row(call, back, row.line, call.rank * MAX_TOKENS + row.slot, start);
    } else if (!ORDER_K) {
      send_sum(call, back, row, start);
    } else {
      const u64 token = call.tokens_of[row.line];
      for (u32 j = 0; j < CHOICES; ++j) {
        const u64 at = u64(row.line) * CHOICES + j;
        if (call.ids[at] < 0) continue;
        send_row(call, back, call.places[at], token * CHOICES + j, start);
      }
    }
  }
}

// The sum of what came back for each token.
__device__ __forceinline__ void sum_up(const CombineCall& call, u64 here) {
  const u32 warp = blockIdx.x * WARPS + threadIdx.x / 32, lane = threadIdx.x % 32;
  const u32 tokens = call.tokens;
  constexpr u32 parts = ORDER_K ? CHOICES : RANKS;
  for (u32 u = warp; u < tokens * SEGMENTS; u += WARPS * BLOCKS) {
    const u32 t = u / SEGMENTS, start = u % SEGMENTS * SEGMENT + lane;
    float total[PIECES][Element::lanes] = {};
    for (u32 p = 0; p < parts; ++p) {
      const i64 found = ORDER_K ? call.own_ids[t * CHOICES + p]
                                : static_cast<i64>(call.slots[t * RANKS + p]);
      if (found < 0) continue;
      const u64 line = ORDER_K ? u64(t) * CHOICES + p : p * MAX_TOKENS + found;
      float weight = 1.0f;
      if (ORDER_K && call.own_weights != nullptr) {
        weight = call.own_weights[t * CHOICES + p];
      }
      const Vec* from = reinterpret_cast<const Vec*>(here) + line * VECS;
#pragma unroll
      for (u32 k = 0; k < PIECES; ++k) {
        if (start + 32 * k < VECS) {
          add_vec(total[k], load_relaxed(from + start + 32 * k), weight);
        }
      }
    }
#pragma unroll
    for (u32 k = 0; k < PIECES; ++k) {
      const u32 index = start + 32 * k;
      if (index < VECS) {
        store_plain(call.out + u64(t) * VECS + index, Element::pack(total[k]));
      }
    }
  }
}

__device__ __forceinline__ void combine_rows(const CombineCall& call, CombineShared& s) {
  const MemoryChannel* mine = call.channels + blockIdx.x * RANKS;
  const u64 epoch = mine[call.rank].epoch(), half = (epoch & 1) * BACK_HALF;
  if (threadIdx.x == 0) {
    u32 end = 0;
    for (u32 q = 0; q < RANKS; ++q) s.ends[q] = end += call.sources[q];
  }
  __syncthreads();
  send_back(call, s.ends, mine, half);
  const u64 at = BACK_DONE_AT + (epoch & 1) * PACKETS;
  tell_all(mine, call.rank, at, epoch, 0);
  if (!hear_all(mine, at, epoch, 2)) return;
  sum_up(call, mine[call.rank].local + half);
  __syncthreads();
  if (threadIdx.x == 0) {
    mine[call.rank].end_call();
    const MemoryChannel* dispatches = call.dispatches + blockIdx.x * RANKS;
    call.blocks[blockIdx.x * BLOCK_WORDS + COMBINED] = dispatches[call.rank].epoch() - 1;
  }
}

}  // namespace stretto

extern "C" __global__ void __launch_bounds__(stretto::THREADS)
    stretto_combine(const stretto::CombineCall call) {
  STRETTO_SHARED(stretto::CombineShared, shared);
  stretto::combine_rows(call, shared);
}
