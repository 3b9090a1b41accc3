// dispatch.cuh -- each token to the ranks of its experts: one kernel.
//
// A block has some tokens, a chunk at a time. It counts what stands before them, so it
// knows every place without asking; its warps load rows, make fp8 of them where that is
// asked for, and store them at every rank that gets them. A packet behind each chunk says
// which slots it filled. Block 0 counts all tokens first, and tells totals; when a block
// has heard those, it knows where rows are to lie as experts take them, and lays out what
// the block of its own number sent on each rank, a chunk behind: rows are laid out while
// the next are under way.
#pragma once

#include "laid.cuh"

namespace stretto {

// What each block keeps of its own: when each half was used last, and the dispatch that a
// combine was called after.
constexpr u32 BLOCK_WORDS = 4, COMBINED = 2;
constexpr u32 PIECES = MADE_OF == 1 ? 4 : MADE_OF == 2 ? 2 : 1;  // of a lane, at once
constexpr u32 SEGMENT = 32 * PIECES;  // vectors under way that a warp has at once
constexpr u32 SEGMENTS = (ROW_VECS + SEGMENT - 1) / SEGMENT;
constexpr u32 MOST_LAID = 7; // vectors that a lane has at once, of a row that came
constexpr u64 CHUNK_PACKETS = PACKETS * CHUNKS;  // bytes of a set of packets, one of each chunk

__device__ __forceinline__ u32 chunk_of(u32 rank, u32 chunk) {
  return (rank * BLOCKS + blockIdx.x) * CHUNKS + chunk;
}

struct DispatchShared {
  Peers peers;
  u32 before[EXPERTS];  // choices of each expert so far
  u32 rows_before[RANKS];
  u32 bad;  // the first choice that is no expert
  int chosen[CHUNK * CHOICES];
  u32 number[CHUNK * CHOICES];
  u32 ranks[CHUNK];  // bits
  int slot[CHUNK * RANKS];
  int places[WARPS * CHOICES];
  u32 words[WARPS * CHOICES];
  u32 rows[RANKS];  // that came of each
  u32 totals[MOST_LOCALS];
  u32 groups[WARPS];
  u32 base[RANKS * MOST_LOCALS];  // where each rank's rows of an expert begin
};

// A token's choices, all loaded at once.
struct Choices {
  i64 ids[CHOICES];

  __device__ __forceinline__ void load(const DispatchCall& call, u32 t) {
#pragma unroll
    for (u32 j = 0; j < CHOICES; ++j) ids[j] = call.ids[u64(t) * CHOICES + j];
  }
  __device__ __forceinline__ int expert(u32 j) const {
    return ids[j] >= 0 && ids[j] < EXPERTS ? static_cast<int>(ids[j]) : -1;
  }
  __device__ __forceinline__ u32 ranks() const {
    u32 bits = 0;
#pragma unroll
    for (u32 j = 0; j < CHOICES; ++j) {
      if (expert(j) >= 0) bits |= 1u << owner_of(static_cast<u32>(expert(j)));
    }
    return bits;
  }
};

// What stands before token `end`. Sums of whole numbers: in any order. A thread has the
// choices of two tokens on their way.
__device__ __forceinline__ void count_before(const DispatchCall& call, DispatchShared& s,
                                             u32 end) {
  __syncthreads();
  for (u32 e = threadIdx.x; e < EXPERTS; e += THREADS) s.before[e] = 0;
  if (threadIdx.x < RANKS) s.rows_before[threadIdx.x] = 0;
  if (threadIdx.x == 0) s.bad = NOBODYS;
  __syncthreads();
  u32 rows[RANKS] = {};
  for (u32 first = threadIdx.x; first < end; first += 2 * THREADS) {
    Choices two[2];
#pragma unroll
    for (u32 i = 0; i < 2; ++i) {
      if (first + i * THREADS < end) two[i].load(call, first + i * THREADS);
    }
#pragma unroll
    for (u32 i = 0; i < 2; ++i) {
      const u32 t = first + i * THREADS;
      if (t >= end) continue;
#pragma unroll
      for (u32 j = 0; j < CHOICES; ++j) {
        const i64 id = two[i].ids[j];
        if (two[i].expert(j) >= 0) atomicAdd(&s.before[two[i].expert(j)], 1u);
        if (id < -1 || id >= EXPERTS) atomicMin(&s.bad, t * CHOICES + j);
      }
#pragma unroll
      for (u32 q = 0; q < RANKS; ++q) rows[q] += two[i].ranks() >> q & 1;
    }
  }
#pragma unroll
  for (u32 q = 0; q < RANKS; ++q) {
    if (rows[q] != 0) atomicAdd(&s.rows_before[q], rows[q]);
  }
  __syncthreads();
}

// The places of a chunk's tokens: a thread counts for an expert, or for a rank, in order.
__device__ __forceinline__ void count_some(const DispatchCall& call, DispatchShared& s,
                                           u32 first, u32 many) {
  for (u32 t = threadIdx.x; t < many; t += THREADS) {
    Choices token;
    token.load(call, first + t);
#pragma unroll
    for (u32 j = 0; j < CHOICES; ++j) s.chosen[t * CHOICES + j] = token.expert(j);
    s.ranks[t] = token.ranks();
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

// A part of a row under way; the next is loaded while one is sent.
struct Part {
  Item items[PIECES];

  // Part `u` of the rows from `first` to before `last`.
  __device__ __forceinline__ void load(const DispatchCall& call, u32 u, u32 first,
                                       u32 last) {
    const u32 start = u % SEGMENTS * SEGMENT + threadIdx.x % 32, t = first + u / SEGMENTS;
#pragma unroll
    for (u32 k = 0; k < PIECES; ++k) {
      const u32 index = start + 32 * k;
      items[k].load(call.x + t * u64(VECS), index, t < last && index < ROW_VECS);
    }
  }

  // To every rank that gets it; of token `t` of those that have places.
  __device__ __forceinline__ void send(const DispatchCall& call, const DispatchShared& s,
                                       u32 u, u32 t) const {
    const u32 start = u % SEGMENTS * SEGMENT + threadIdx.x % 32;
    Vec made[PIECES];
    float scales[PIECES] = {};
#pragma unroll
    for (u32 k = 0; k < PIECES; ++k) made[k] = items[k].made(scales[k]);
#pragma unroll
    for (u32 q = 0; q < RANKS; ++q) {
      const int slot = s.slot[t * RANKS + q];
      if (slot < 0) continue;
      const u64 line = call.rank * MAX_TOKENS + slot, to = s.peers.to[q];
      Vec* row = reinterpret_cast<Vec*>(to + ROWS_AT) + line * ROW_VECS;
#pragma unroll
      for (u32 k = 0; k < PIECES; ++k) {
        const u32 index = start + 32 * k;
        if (index >= ROW_VECS) continue;
        store_relaxed(row + index, made[k]);
        if (QUANTISED && index % 8 == 0) {
          u32* at = reinterpret_cast<u32*>(to + SCALES_AT) + line * GROUPS + index / 8;
          store_relaxed_word(at, as_bits(scales[k]));
        }
      }
    }
  }
};

// Ids and weights of some tokens, to every rank that gets them.
__device__ __forceinline__ void send_words(const DispatchCall& call,
                                           const DispatchShared& s, u32 first, u32 many) {
  for (u32 u = threadIdx.x; u < many * RANKS * CHOICES; u += THREADS) {
    const u32 j = u % CHOICES, q = u / CHOICES % RANKS, t = u / CHOICES / RANKS;
    const int slot = s.slot[t * RANKS + q], e = s.chosen[t * CHOICES + j];
    if (slot < 0) continue;
    const u64 to = s.peers.to[q], line = call.rank * MAX_TOKENS + slot;
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

// Send a chunk of this block's tokens, from `first` to before `last`; `u` is the next part
// of a warp's, which it has loaded.
__device__ __forceinline__ void send_chunk(const DispatchCall& call, DispatchShared& s,
                                           const MemoryChannel* mine, u64 told, u32 flag,
                                           u32 first, u32 last, u32 chunk, Part& part,
                                           u32& u) {
  const u32 t = least(first + chunk * CHUNK, last), many = least(CHUNK, last - t);
  const u32 q = threadIdx.x, begins = q < RANKS ? s.rows_before[q] : 0;
  __syncthreads();  // places of the chunk before have been used
  if (many != 0) {
    count_some(call, s, t, many);
    for (; u < (t - first + many) * SEGMENTS; u += WARPS) {
      const Part now = part;
      part.load(call, u + WARPS, first, last);
      now.send(call, s, u, u / SEGMENTS - (t - first));
    }
    send_words(call, s, t, many);
  }
  __syncthreads();
  if (q >= RANKS) return;
  if (many != 0) fence();
  const u64 came = s.rows_before[q] - begins;
  mine[q].put_packet(told, chunk_of(call.rank, chunk), begins | came << 32, flag);
}

// Which slots of each rank a chunk filled.
struct Ranges {
  u32 first[RANKS], many[RANKS];

  __device__ __forceinline__ void set(u32 q, u64 said) {
    first[q] = static_cast<u32>(said), many[q] = static_cast<u32>(said >> 32);
  }
  // Row `i` of all; of what rank, and its slot there.
  __device__ __forceinline__ Came at(const u32* rows, u32 i) const {
    u32 source = 0, before = 0, begins = first[0];
#pragma unroll
    for (u32 q = 0; q + 1 < RANKS; ++q) {
      const u32 next = before + many[q];
      if (source == q && i >= next) source = q + 1, before = next, begins = first[q + 1];
    }
    const u32 slot = begins + i - before;
    return {source, slot, line_of(rows, source, slot)};
  }
};

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

// A chunk that came of every rank, as the layout says: each part of a row is read once.
__device__ __forceinline__ void lay_out(const DispatchCall& call, DispatchShared& s,
                                        const Inboxes& from, u64 told, u32 chunk,
                                        bool& ok) {
  constexpr u32 whole = (ROW_VECS + 31) / 32, lanes = whole < MOST_LAID ? whole : MOST_LAID;
  constexpr u32 parts = LAYOUT == BY_RANK ? 1 : (whole + lanes - 1) / lanes;
  const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const Kept kept{s.places + warp * CHOICES, s.words + warp * CHOICES};
  const u64 here = from.here;
  Ranges ranges;
#pragma unroll
  for (u32 q = 0; q < RANKS; ++q) {
    const Inbox inbox{from.mine[q], from.mine[q].local + told, told, from.flag};
    const u64 said = inbox.hear(chunk_of(q, chunk), ok, 2);
    ranges.set(q, ok ? said : 0);
  }
  for (u32 u = warp; u < all_rows(ranges.many) * parts; u += WARPS) {
    const Came row = ranges.at(s.rows, u / parts);
    const u64 line = row.source * MAX_TOKENS + row.slot;
    const u32 start = u % parts * lanes * 32 + lane;
    Vec v[lanes];
#pragma unroll
    for (u32 k = 0; k < lanes && LAYOUT != BY_RANK; ++k) {
      const Vec* at = reinterpret_cast<const Vec*>(here + ROWS_AT) + line * ROW_VECS;
      if (start + 32 * k < ROW_VECS) v[k] = load_relaxed(at + start + 32 * k);
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
  const u64 epoch = call.epochs[blockIdx.x] + 1, turn = epoch & 1;
  const u64 half = (LAYOUT == BY_RANK ? call.half : turn) * HALF;
  const u64 told = DONE_AT + turn * CHUNK_PACKETS, mark = epoch << 32;
  const u32 flag = static_cast<u32>(epoch), tokens = call.tokens;
  if (LAYOUT == BY_RANK && !is_free(call, mine, epoch)) return;
  const u32 each = (tokens + BLOCKS - 1) / BLOCKS;
  const u32 first = least(blockIdx.x * each, tokens), last = least(first + each, tokens);
  u32 u = threadIdx.x / 32;
  Part part;
  part.load(call, u, first, last);
  if (threadIdx.x < RANKS) s.peers.to[threadIdx.x] = mine[threadIdx.x].remote + half;
  if (blockIdx.x == 0) {
    count_before(call, s, tokens);
    tell_totals(
        call, s.peers, mark, s.bad, [&](u32 e) { return s.before[e]; },
        [&](u32 q) { return s.rows_before[q]; });
  }
  count_before(call, s, first);
  const Inboxes from{mine, mine[call.rank].local + half, half, flag};
  bool ok = true;
  for (u32 chunk = 0; chunk <= CHUNKS; ++chunk) {
    if (chunk < CHUNKS) {
      send_chunk(call, s, mine, told, flag, first, last, chunk, part, u);
    }
    if (chunk == 0) continue;
    if (chunk == 1 && !hear_totals(call, s, from)) return;
    lay_out(call, s, from, told, chunk - 1, ok);
  }
  fill_up(call, s);
  if (!__syncthreads_and(ok)) return;
  if (threadIdx.x == 0) call.epochs[blockIdx.x] = epoch;
}

}  // namespace stretto

extern "C" __global__ void __launch_bounds__(stretto::THREADS)
    stretto_dispatch(const stretto::DispatchCall call) {
  STRETTO_SHARED(stretto::DispatchShared, shared);
  stretto::dispatch_rows(call, shared);
}
