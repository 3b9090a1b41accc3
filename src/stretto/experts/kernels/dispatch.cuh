// dispatch.cuh -- each token to the ranks of its experts: one kernel.
//
// A block has some tokens, one after the other. It counts what stands before them, so it
// knows every place without asking; then its warps load rows, make fp8 of them where that
// is asked for, and store them at every rank that gets them. The last block has counted
// all, and tells totals. When all have come, blocks lay rows out as experts take them.
#pragma once

#include "laid.cuh"

namespace stretto {

// What each block keeps of its own: when each half was used last, and the dispatch that a
// combine was called after.
constexpr u32 BLOCK_WORDS = 4, COMBINED = 2;
constexpr u32 MOST_LAID = 14;  // vectors that a lane has at once, of a row that came
constexpr u32 PLACED = 64;  // tokens whose places are counted at once

struct DispatchShared {
  u32 before[EXPERTS];  // choices of each expert so far
  u32 rows_before[RANKS];
  u32 bad;  // the first choice that is no expert
  int chosen[PLACED * CHOICES];
  u32 number[PLACED * CHOICES];
  int places[WARPS * CHOICES];
  u32 ranks[PLACED];  // bits
  int slot[PLACED * RANKS];
  u32 ends[RANKS];
  u32 totals[MOST_LOCALS];
  u32 groups[MOST_LOCALS / 16 + 1];
  u32 base[RANKS * MOST_LOCALS];  // where each rank's rows of an expert begin
};

__device__ __forceinline__ int chosen_at(const DispatchCall& call, u32 i) {
  const i64 id = call.ids[i];
  return id >= 0 && id < EXPERTS ? static_cast<int>(id) : -1;
}

// What stands before a block's first token. Sums of whole numbers: in any order.
__device__ __forceinline__ void count_before(const DispatchCall& call, DispatchShared& s,
                                             u32 first) {
  for (u32 e = threadIdx.x; e < EXPERTS; e += THREADS) s.before[e] = 0;
  if (threadIdx.x < RANKS) s.rows_before[threadIdx.x] = 0;
  if (threadIdx.x == 0) s.bad = NOBODYS;
  __syncthreads();
  for (u32 t = threadIdx.x; t < first; t += THREADS) {
    u32 ranks = 0;
#pragma unroll
    for (u32 j = 0; j < CHOICES; ++j) {
      const int e = chosen_at(call, t * CHOICES + j);
      if (e < 0) continue;
      atomicAdd(&s.before[e], 1u);
      ranks |= 1u << owner_of(e);
    }
    for (u32 q = 0; q < RANKS; ++q) {
      if (ranks >> q & 1) atomicAdd(&s.rows_before[q], 1u);
    }
  }
}

// The places of some tokens: a thread counts for an expert, or for a rank, in order.
__device__ __forceinline__ void count_some(const DispatchCall& call, DispatchShared& s,
                                           u32 first, u32 many) {
  __syncthreads();
  for (u32 t = threadIdx.x; t < many; t += THREADS) {
    u32 ranks = 0;
    for (u32 j = 0; j < CHOICES; ++j) {
      const u32 i = t * CHOICES + j;
      const i64 id = call.ids[first * CHOICES + i];
      const int e = chosen_at(call, first * CHOICES + i);
      s.chosen[i] = e;
      if (e >= 0) ranks |= 1u << owner_of(e);
      if (id < -1 || id >= EXPERTS) {
        atomicMin(&s.bad, first * CHOICES + i);
      }
    }
    s.ranks[t] = ranks;
  }
  __syncthreads();
  for (u32 e = threadIdx.x; e < EXPERTS; e += THREADS) {
    u32 count = s.before[e];
    for (u32 i = 0; i < many * CHOICES; ++i) {
      if (s.chosen[i] == static_cast<int>(e)) s.number[i] = count++;
    }
    s.before[e] = count;
  }
  if (threadIdx.x >= THREADS - RANKS) {
    const u32 q = THREADS - 1 - threadIdx.x;
    u32 count = s.rows_before[q];
    for (u32 t = 0; t < many; ++t) {
      const bool goes = s.ranks[t] >> q & 1;
      s.slot[t * RANKS + q] = goes ? static_cast<int>(count) : -1;
      count += goes;
    }
    s.rows_before[q] = count;
  }
  __syncthreads();
  for (u32 i = threadIdx.x; i < many * RANKS; i += THREADS) {
    call.slots[first * RANKS + i] = s.slot[i];
  }
}

// One piece of a row to one rank.
__device__ __forceinline__ void store_piece(u64 to, u64 line, u32 index, const Vec& v,
                                            const u32 (&words)[2], float scale) {
  if constexpr (!QUANTISED) {
    store_relaxed(reinterpret_cast<Vec*>(to + ROWS_AT) + line * VECS + index, v);
  } else {
    const u64 row = to + ROWS_AT + line * HIDDEN;
    if constexpr (Element::lanes == 8) {
      store_relaxed_word(reinterpret_cast<u64*>(row) + index,
                         words[0] | static_cast<u64>(words[1]) << 32);
    } else {
      store_relaxed_word(reinterpret_cast<u32*>(row) + index, words[0]);
    }
    constexpr u32 lanes = 128 / Element::lanes;
    if (index % lanes == 0) {
      const u64 at = line * GROUPS + index / lanes;
      store_relaxed_word(reinterpret_cast<u32*>(to + SCALES_AT) + at, as_bits(scale));
    }
  }
}

// A part of a row under way; the next is loaded while one is sent.
struct Part {
  Vec v[PIECES];

  // Part `u` of the rows from `first` to before `last`.
  __device__ __forceinline__ void load(const DispatchCall& call, u32 u, u32 first,
                                       u32 last) {
    const u32 start = u % SEGMENTS * SEGMENT + threadIdx.x % 32, t = first + u / SEGMENTS;
#pragma unroll
    for (u32 k = 0; k < PIECES; ++k) {
      v[k] = Vec{0, 0, 0, 0};
      if (t >= last || start + 32 * k >= VECS) continue;
      v[k] = load_plain(call.x + t * u64(VECS) + start + 32 * k);
    }
  }

  // To every rank that gets it; of token `t` of those that have places.
  __device__ __forceinline__ void send(const DispatchCall& call, const DispatchShared& s,
                                       const MemoryChannel* mine, u64 half, u32 u,
                                       u32 t) const {
    const u32 start = u % SEGMENTS * SEGMENT + threadIdx.x % 32;
#pragma unroll
    for (u32 k = 0; k < PIECES; ++k) {
      const u32 index = start + 32 * k;
      u32 words[2] = {0, 0};
      float scale = 0;
      if constexpr (QUANTISED) scale = quantise_vec(v[k], words);
      for (u32 q = 0; q < RANKS && index < VECS; ++q) {
        const int slot = s.slot[t * RANKS + q];
        if (slot >= 0) {
          const u64 line = call.rank * MAX_TOKENS + slot;
          store_piece(mine[q].remote + half, line, index, v[k], words, scale);
        }
      }
    }
  }
};

// Ids and weights of some tokens, to every rank that gets them.
__device__ __forceinline__ void send_words(const DispatchCall& call,
                                           const DispatchShared& s,
                                           const MemoryChannel* mine, u64 half, u32 first,
                                           u32 many) {
  for (u32 u = threadIdx.x; u < many * RANKS * CHOICES; u += THREADS) {
    const u32 j = u % CHOICES, q = u / CHOICES % RANKS, t = u / CHOICES / RANKS;
    const int slot = s.slot[t * RANKS + q], e = s.chosen[t * CHOICES + j];
    if (slot < 0) continue;
    const u64 to = mine[q].remote + half, line = call.rank * MAX_TOKENS + slot;
    const bool here = e >= 0 && owner_of(e) == q;
    const u32 i = (first + t) * CHOICES + j;
    const float weight = call.weights == nullptr ? 1.0f : call.weights[i];
    u32* ids = reinterpret_cast<u32*>(to + IDS_AT) + line * CHOICES + j;
    store_relaxed_word(ids, here ? static_cast<u32>(local_of(e)) : NOBODYS);
    store_relaxed_word(reinterpret_cast<u32*>(to + NUMBERS_AT) + line * CHOICES + j,
                       here ? s.number[t * CHOICES + j] : NOBODYS);
    store_relaxed_word(reinterpret_cast<u32*>(to + WEIGHTS_AT) + line * CHOICES + j,
                       as_bits(weight));
    if (j == 0) {
      store_relaxed_word(reinterpret_cast<u32*>(to + TOKENS_AT) + line, first + t);
    }
  }
}

// How many rows and choices there are of this rank, to every rank; by who counted all.
__device__ __forceinline__ void tell_totals(const DispatchShared& s,
                                            const MemoryChannel* mine, u32 rank,
                                            u64 half) {
  __syncthreads();
  const u32 line = rank * (1 + MOST_LOCALS);
  for (u32 i = threadIdx.x; i < EXPERTS + RANKS; i += THREADS) {
    const u32 q = i < EXPERTS ? owner_of(i) : i - EXPERTS;
    u32* totals = reinterpret_cast<u32*>(mine[q].remote + half + TOTALS_AT) + line;
    if (i < EXPERTS) {
      store_relaxed_word(totals + 1 + local_of(i), s.before[i]);
    } else {
      store_relaxed_word(totals, s.rows_before[q]);
    }
  }
}

// How many rows came of each rank, and how many of each expert: the same in every block.
__device__ __forceinline__ void read_totals(const DispatchCall& call, DispatchShared& s,
                                            u64 here) {
  const u32* totals = reinterpret_cast<const u32*>(here + TOTALS_AT);
  constexpr u32 line = 1 + MOST_LOCALS;
  if (threadIdx.x < RANKS) s.ends[threadIdx.x] = load_relaxed_word(totals + threadIdx.x * line);
  for (u32 i = threadIdx.x; i < RANKS * call.locals; i += THREADS) {
    const u32 q = i / call.locals, e = i % call.locals;
    s.base[q * MOST_LOCALS + e] = load_relaxed_word(totals + q * line + 1 + e);
  }
  __syncthreads();
}

// A row's ids, weights and token, by the lanes of a warp, for the way back; and the lines
// where its choices lie. Returns how many there are.
__device__ __forceinline__ u32 lay_out_words(const DispatchCall& call, DispatchShared& s,
                                             const Kept& kept, u64 here, const Came& row,
                                             bool tells) {
  const u64 line = row.source * MAX_TOKENS + row.slot;
  const u32 count = keep_lines(kept, CHOICES, [&](u32 j, int& place, u32& word) {
    const u64 from = line * CHOICES + j, to = u64(row.line) * CHOICES + j;
    const u32 e = load_relaxed_word(reinterpret_cast<const u32*>(here + IDS_AT) + from);
    if (LAYOUT == BY_EXPERT) {
      const u32* numbers = reinterpret_cast<const u32*>(here + NUMBERS_AT);
      const u32 number = load_relaxed_word(numbers + from);
      if (e != NOBODYS) {
        place = static_cast<int>(s.base[row.source * MOST_LOCALS + e] + number);
      }
    }
    if (!tells) return;
    const u32* weights = reinterpret_cast<const u32*>(here + WEIGHTS_AT);
    call.out_weights[to] = as_float(load_relaxed_word(weights + from));
    call.out_ids[to] = static_cast<int>(e);
    if (LAYOUT == BY_EXPERT) call.out_places[to] = place;
  });
  if (tells && threadIdx.x % 32 == 0) {
    const u32* tokens = reinterpret_cast<const u32*>(here + TOKENS_AT);
    call.out_tokens[row.line] = static_cast<int>(load_relaxed_word(tokens + line));
  }
  return count;
}

// The scales of a row, to each of its lines, by the lanes of a warp.
__device__ __forceinline__ void lay_out_scales(const DispatchCall& call, u64 here, u64 line,
                                               const int* to, u32 count) {
  const u32* scales = reinterpret_cast<const u32*>(here + SCALES_AT);
  for (int g = threadIdx.x % 32; g < GROUPS; g += 32) {
    const float scale = as_float(load_relaxed_word(scales + line * GROUPS + g));
    for (u32 i = 0; i < count; ++i) call.scales[u64(to[i]) * GROUPS + g] = scale;
  }
}

// Everything that came, as the layout says: each part of a row is read once.
__device__ __forceinline__ void lay_out(const DispatchCall& call, DispatchShared& s,
                                        u64 here) {
  constexpr u32 whole = (ROW_VECS + 31) / 32, lanes = whole < MOST_LAID ? whole : MOST_LAID;
  constexpr u32 parts = LAYOUT == BY_RANK ? 1 : (whole + lanes - 1) / lanes;
  const u32 warp = blockIdx.x * WARPS + threadIdx.x / 32, lane = threadIdx.x % 32;
  const u32 first = threadIdx.x / 32 * CHOICES, rows = s.ends[RANKS - 1];
  const Kept kept{s.places + first, s.number + first};
  for (u32 u = warp; u < rows * parts; u += WARPS * BLOCKS) {
    const Came row = came(s.ends, u / parts);
    const u64 line = row.source * MAX_TOKENS + row.slot;
    const u32 start = u % parts * lanes * 32 + lane;
    Vec v[lanes];
#pragma unroll
    for (u32 k = 0; k < lanes && LAYOUT != BY_RANK; ++k) {
      const Vec* from = reinterpret_cast<const Vec*>(here + ROWS_AT) + line * ROW_VECS;
      if (start + 32 * k < ROW_VECS) v[k] = load_relaxed(from + start + 32 * k);
    }
    const u32 count = lay_out_words(call, s, kept, here, row, start == lane);
    if (LAYOUT == BY_RANK) continue;
    const int own = static_cast<int>(row.line);
    const int* to = LAYOUT == BY_TOKEN ? &own : kept.lines;
    const u32 many = LAYOUT == BY_TOKEN ? 1 : count;
    for (u32 i = 0; i < many; ++i) {
      Vec* out = reinterpret_cast<Vec*>(call.rows) + u64(to[i]) * ROW_VECS + start;
#pragma unroll
      for (u32 k = 0; k < lanes; ++k) {
        if (start + 32 * k < ROW_VECS) store_plain(out + 32 * k, v[k]);
      }
    }
    if (start == lane) lay_out_scales(call, here, line, to, many);
  }
}

// Rows by rank stay in the memory that peers write, where a graph knows them, so their
// half is the caller's. It is free when all ranks have begun a call after that which
// used it: this rank has heard so by a dispatch between, or by a combine. If not, all
// ranks find that alike, and say that they are here.
__device__ __forceinline__ bool is_free(const DispatchCall& call,
                                        const MemoryChannel* mine, u64 epoch) {
  u64* state = call.blocks + blockIdx.x * BLOCK_WORDS;
  bool ok = true;
  if (threadIdx.x < RANKS) {
    const u64 used = state[call.half], heard = state[COMBINED];
    if (used != 0 && used + 1 == epoch && heard < used) {
      const u64 at = ENTER_AT + (epoch & 1) * PACKETS;
      const u32 flag = static_cast<u32>(epoch);
      u64 none = 0;
      const MemoryChannel& peer = mine[threadIdx.x];
      peer.put_packet(at, call.rank * BLOCKS + blockIdx.x, 0, flag);
      ok = peer.read_packet(at, peer.peer * BLOCKS + blockIdx.x, flag, none, 0);
      fence();
    }
  }
  ok = __syncthreads_and(ok);
  if (threadIdx.x == 0) state[call.half] = epoch;
  return ok;
}

__device__ __forceinline__ void dispatch_rows(const DispatchCall& call,
                                              DispatchShared& s) {
  const MemoryChannel* mine = call.channels + blockIdx.x * RANKS;
  const u64 epoch = mine[call.rank].epoch(), turn = epoch & 1;
  const u64 half = (LAYOUT == BY_RANK ? call.half : turn) * HALF;
  if (LAYOUT == BY_RANK && !is_free(call, mine, epoch)) return;
  const u32 tokens = call.tokens;
  const u32 each = (tokens + BLOCKS - 1) / BLOCKS;
  const u32 first = least(blockIdx.x * each, tokens), last = least(first + each, tokens);
  u32 u = threadIdx.x / 32;
  Part part;
  part.load(call, u, first, last);
  count_before(call, s, first);
  for (u32 t = first; t < last; t += PLACED) {
    const u32 many = least(PLACED, last - t);
    count_some(call, s, t, many);
    for (; u < (t - first + many) * SEGMENTS; u += WARPS) {
      const Part now = part;
      part.load(call, u + WARPS, first, last);
      now.send(call, s, mine, half, u, u / SEGMENTS - (t - first));
    }
    send_words(call, s, mine, half, t, many);
  }
  if (blockIdx.x == BLOCKS - 1) tell_totals(s, mine, call.rank, half);
  __syncthreads();
  u64 said = 0;
  if (s.bad != NOBODYS) {
    const u32 id = static_cast<u32>(call.ids[s.bad]);  // as much of it as is said
    said = (s.bad + 1) | static_cast<u64>(id) << 32;
  }
  tell_all(mine, call.rank, DONE_AT + turn * PACKETS, epoch, said);
  if (!hear_all(mine, DONE_AT + turn * PACKETS, epoch, 1)) return;
  const u64 here = mine[call.rank].local + half;
  read_totals(call, s, here);
  place_rows(call, s);
  lay_out(call, s, here);
  fill_up(call, s);
  __syncthreads();
  if (threadIdx.x == 0) mine[call.rank].end_call();
}

}  // namespace stretto

extern "C" __global__ void __launch_bounds__(stretto::THREADS)
    stretto_dispatch(const stretto::DispatchCall call) {
  STRETTO_SHARED(stretto::DispatchShared, shared);
  stretto::dispatch_rows(call, shared);
}
