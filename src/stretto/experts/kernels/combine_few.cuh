// combine_few.cuh -- a combine of few tokens: as combine.cuh, with rows as packets.
//
// The rows of a token's choices are loaded side by side, added in their order, and sent;
// what comes back is added as soon as it is there. In the end each block has heard of the
// same block of every rank: whoever begins the call after the next knows that all have
// left this one.
#pragma once

#include "laid.cuh"

namespace stretto {

constexpr u32 LANE_VECS = 1;  // of a part, which a warp has at once
constexpr u64 BACK_ROW = 2 * VECS;  // packets
constexpr u32 PART = 32 * LANE_VECS, PARTS = (VECS + PART - 1) / PART;

struct CombineShared {
  int lines[WARPS * CHOICES];
  u32 words[WARPS * CHOICES];
};

__device__ __forceinline__ void send_back(const CombineCall& call, CombineShared& s,
                                          const MemoryChannel* mine, const u32* rows,
                                          u64 half, u64 mark) {
  constexpr u32 many = CHOICES < 8 ? CHOICES : 8;
  const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const u32 units = all_rows(rows) * PARTS;
  const Kept kept{s.lines + warp * CHOICES, s.words + warp * CHOICES};
  for (u32 u = warp * BLOCKS + blockIdx.x; u < units; u += WARPS * BLOCKS) {
    const Came row = came(rows, u / PARTS);
    const u32 start = u % PARTS * PART + lane;
    const u64 back = mine[row.source].remote + half, line = call.rank * MAX_TOKENS + row.slot;
    if constexpr (LAYOUT != BY_EXPERT) {
      const int from = static_cast<int>(row.line);
      take_lines<1, LANE_VECS, false>(
          call.rows, &from, 1, start,
          [&](u32, u32 k, const Vec& v) { put_vec(back, line * BACK_ROW, VECS, start + 32 * k, v, mark); });
    } else if constexpr (!ORDER_K) {
      float total[LANE_VECS][Element::lanes] = {};
      const u32 count = keep_choices(kept, call, row);
      add_lines<many, false>(total, call.rows, kept, count, start);
#pragma unroll
      for (u32 k = 0; k < LANE_VECS; ++k) {
        if (start + 32 * k >= VECS) continue;
        put_vec(back, line * BACK_ROW, VECS, start + 32 * k, Element::pack(total[k]), mark);
      }
    } else {
      const u64 first = u64(call.tokens_of[row.line]) * CHOICES;
      const u32 count = keep_choices(kept, call, row);
      take_lines<many, LANE_VECS, false>(
          call.rows, kept.lines, count, start, [&](u32 j, u32 k, const Vec& v) {
            put_vec(back, (first + kept.words[j]) * BACK_ROW, VECS, start + 32 * k, v, mark);
          });
    }
  }
}

// Which lines of a token came back: the first some of them, from `first` on.
constexpr u32 BACK = ORDER_K ? CHOICES : RANKS, SOME = BACK < 4 ? BACK : 4;
struct Back {
  i64 found[SOME];  // -1: none; else an expert, or a slot

  __device__ __forceinline__ void find(const CombineCall& call, u32 t, u32 first) {
#pragma unroll
    for (u32 i = 0; i < SOME; ++i) {
      const u32 p = first + i;
      found[i] = p >= BACK || t >= call.tokens ? -1
                 : ORDER_K ? call.own_ids[t * CHOICES + p]
                           : static_cast<i64>(call.slots[t * RANKS + p]);
    }
  }
  __device__ __forceinline__ u64 row_of(u32 t, u32 first, u32 i) const {
    const u64 line = ORDER_K ? u64(t) * CHOICES + first + i
                             : (first + i) * u64(MAX_TOKENS) + found[i];
    return line * BACK_ROW;
  }
  __device__ __forceinline__ u32 peer_of(u32 first, u32 i) const {
    return ORDER_K ? owner_of(static_cast<u32>(found[i])) : first + i;
  }
};

// The sum of what comes back for each token; `back` is of this warp's first.
__device__ __forceinline__ bool sum_up(const CombineCall& call, const Inboxes& from,
                                       Back back) {
  const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  bool ok = true;
  for (u32 u = warp * BLOCKS + blockIdx.x; u < call.tokens * PARTS;
       u += WARPS * BLOCKS) {
    const u32 t = u / PARTS, start = u % PARTS * PART + lane;
    float total[LANE_VECS][Element::lanes] = {};
    for (u32 first = 0; first < BACK; first += SOME) {
      Coming seen[SOME][LANE_VECS];
      if (first != 0 || u >= WARPS * BLOCKS) back.find(call, t, first);
#pragma unroll
      for (u32 i = 0; i < SOME; ++i) {
        if (back.found[i] < 0) continue;
        const Inbox inbox = from.of(back.peer_of(first, i), 0);
#pragma unroll
        for (u32 k = 0; k < LANE_VECS; ++k) {
          if (start + 32 * k >= VECS) continue;
          seen[i][k].look(inbox, back.row_of(t, first, i), VECS, start + 32 * k);
        }
      }
#pragma unroll
      for (u32 i = 0; i < SOME; ++i) {
        if (back.found[i] < 0) continue;
        const Inbox inbox = from.of(back.peer_of(first, i), 0);
        float weight = 1.0f;
        if (ORDER_K && call.own_weights != nullptr) {
          weight = call.own_weights[t * CHOICES + first + i];
        }
#pragma unroll
        for (u32 k = 0; k < LANE_VECS; ++k) {
          if (start + 32 * k >= VECS) continue;
          const u64 row = back.row_of(t, first, i);
          add_vec(total[k], seen[i][k].take(inbox, row, VECS, start + 32 * k, ok), weight);
        }
      }
    }
#pragma unroll
    for (u32 k = 0; k < LANE_VECS; ++k) {
      if (start + 32 * k < VECS) {
        store_plain(call.out + u64(t) * VECS + start + 32 * k, Element::pack(total[k]));
      }
    }
  }
  return ok;
}

__device__ __forceinline__ void combine_rows(const CombineCall& call, CombineShared& s) {
  const MemoryChannel* mine = call.channels + blockIdx.x * RANKS;
  const u64 epoch = call.epochs[blockIdx.x] + 1, half = (epoch & 1) * BACK_HALF;
  const u32 flag = static_cast<u32>(epoch);
  const u64 mark = static_cast<u64>(flag) << 32;
  const u64 heard = BACK_DONE_AT + (epoch & 1) * PACKETS;
  Back back;
  back.find(call, (threadIdx.x / 32 * BLOCKS + blockIdx.x) / PARTS, 0);
  u32 rows[RANKS];  // that came of each
#pragma unroll
  for (u32 q = 0; q < RANKS; ++q) rows[q] = static_cast<u32>(call.sources[q]);
  if (threadIdx.x < RANKS) {
    mine[threadIdx.x].put_packet(heard, call.rank * BLOCKS + blockIdx.x, 0, flag);
  }
  send_back(call, s, mine, rows, half, mark);
  bool ok = sum_up(call, {mine, mine[call.rank].local + half, half, flag}, back);
  if (threadIdx.x < RANKS && ok) {
    u64 none = 0;
    const u64 at = threadIdx.x * BLOCKS + blockIdx.x;
    ok = mine[threadIdx.x].read_packet(heard, at, flag, none, 3);
  }
  if (!__syncthreads_and(ok)) return;
  if (threadIdx.x == 0) call.epochs[blockIdx.x] = epoch;
}

}  // namespace stretto

extern "C" __global__ void __launch_bounds__(stretto::THREADS)
    stretto_combine(const stretto::CombineCall call) {
  STRETTO_SHARED(stretto::CombineShared, shared);
  stretto::combine_rows(call, shared);
}
