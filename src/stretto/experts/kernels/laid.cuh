// laid.cuh -- what kernels of few and of many tokens share: parameters, fp8, places.
#pragma once

#include "packets.cuh"

namespace stretto {

struct DispatchCall {
  const MemoryChannel* channels;
  u64* epochs;  // how many calls each block has ended
  const Vec* x;
  const i64* ids;
  const float* weights;
  int* slots;  // T x n: for the way back
  u8* rows;
  float* scales;
  int* out_ids;  // of each row that came: this rank's experts, or -1
  float* out_weights;
  int* out_places;  // where each choice lies in `rows`
  int* out_tokens;  // the row's token, where it came from
  i64* counts;      // rows of each expert
  i64* starts;      // where they begin
  i64* sources;     // rows that came of each rank
  u64* blocks;      // what each keeps of its own (dispatch.cuh)
  u32 tokens, rank, locals;  // locals: experts of this rank
  u32 half;  // by rank: of which memory `rows` is a part
};

struct CombineCall {
  const MemoryChannel* channels;
  u64* epochs;
  const Vec* rows;
  const i64* sources;  // rows that came of each rank
  const int* ids;      // of each row that came: this rank's experts, or -1
  const float* weights;  // order "rank": of those; null: sums
  const int* places;
  const int* tokens_of;  // the row's token, where it came from
  const int* slots;      // of this rank's tokens
  const i64* own_ids;
  const float* own_weights;  // order "k": of this rank's tokens; null: sums
  Vec* out;
  const u64* dispatches;  // how many each block has ended
  u64* blocks;
  u32 tokens, rank;
};

// Lines of rows that a warp takes, in their order, and a word of each: bits of a weight,
// or which choice it is.
struct Kept {
  int* lines;
  u32* words;
};

// Keep the lines that are there, for the lanes of this warp. Returns how many; `of` says
// a line, or leaves -1, and its word.
template <class Of>
__device__ __forceinline__ u32 keep_lines(const Kept& kept, u32 most, Of of) {
  const u32 lane = threadIdx.x % 32;
  u32 count = 0;
  __syncwarp();  // those of before have been used
  for (u32 first = 0; first < most; first += 32) {
    int line = -1;
    u32 word = 0;
    if (first + lane < most) of(first + lane, line, word);
    const u32 there = __ballot_sync(0xffffffffu, line >= 0);
    const u32 at = count + __popc(there & ((1u << lane) - 1));
    if (line >= 0) kept.lines[at] = line, kept.words[at] = word;
    count += __popc(there);
  }
  __syncwarp();
  return count;
}

// The same of the choices of a row that came: where each lies, and its weight; in order
// "k" which it is.
__device__ __forceinline__ u32 keep_choices(const Kept& kept, const CombineCall& call,
                                            const Came& row) {
  return keep_lines(kept, CHOICES, [&](u32 j, int& line, u32& word) {
    const u64 at = u64(row.line) * CHOICES + j;
    const int id = call.ids[at], place = call.places[at];
    word = ORDER_K ? j : as_bits(call.weights == nullptr ? 1.0f : call.weights[at]);
    line = id < 0 ? -1 : place;
  });
}

// Take parts of lines, MANY of them on their way at once: `take(j, k, vector)` of the j-th
// line, vector start + 32 * k. `SHARED`: peers wrote them.
template <u32 MANY, u32 LANES, bool SHARED, class Take>
__device__ __forceinline__ void take_lines(const Vec* rows, const int* lines, u32 count,
                                           u32 start, Take take) {
  for (u32 first = 0; first < count; first += MANY) {
    Vec v[MANY][LANES];
#pragma unroll
    for (u32 j = 0; j < MANY; ++j) {
      if (first + j >= count) continue;
      const Vec* from = rows + u64(lines[first + j]) * VECS + start;
#pragma unroll
      for (u32 k = 0; k < LANES; ++k) {
        if (start + 32 * k >= VECS) continue;
        v[j][k] = SHARED ? load_relaxed(from + 32 * k) : load_plain(from + 32 * k);
      }
    }
#pragma unroll
    for (u32 j = 0; j < MANY; ++j) {
      if (first + j >= count) continue;
#pragma unroll
      for (u32 k = 0; k < LANES; ++k) {
        if (start + 32 * k < VECS) take(first + j, k, v[j][k]);
      }
    }
  }
}

// Add them, times their weights.
template <u32 MANY, bool SHARED, u32 LANES>
__device__ __forceinline__ void add_lines(float (&total)[LANES][Element::lanes],
                                          const Vec* rows, const Kept& kept, u32 count,
                                          u32 start) {
  take_lines<MANY, LANES, SHARED>(
      rows, kept.lines, count, start, [&](u32 j, u32 k, const Vec& v) {
        add_vec(total[k], v, as_float(kept.words[j]));
      });
}

// What a lane makes a vector under way of: 16 elements for fp8, else a vector as it was.
struct Item {
  Vec v[MADE_OF];

  __device__ __forceinline__ void load(const Vec* row, u32 index, bool wants) {
#pragma unroll
    for (u32 i = 0; i < MADE_OF; ++i) {
      v[i] = Vec{0, 0, 0, 0};
      if (wants) v[i] = load_plain(row + index * MADE_OF + i);
    }
  }
  // The vector, and its scale: 8 lanes have one. All lanes of a warp are here.
  __device__ __forceinline__ Vec made(float& scale) const {
    if constexpr (QUANTISED) {
      return quantised(scale);
    } else {
      return v[0];
    }
  }

 private:
  __device__ __forceinline__ Vec quantised(float& per) const {
    float part[MADE_OF][Element::lanes], most = 1e-4f;
#pragma unroll
    for (u32 i = 0; i < MADE_OF; ++i) {
      Element::unpack(v[i], part[i]);
#pragma unroll
      for (u32 j = 0; j < Element::lanes; ++j) {
        const float size = as_float(as_bits(part[i][j]) & 0x7fffffffu);
        if (size > most) most = size;
      }
    }
#pragma unroll
    for (u32 d = 4; d > 0; d /= 2) {
      const float other = __shfl_xor_sync(0xffffffffu, most, d);
      if (other > most) most = other;
    }
    float scale = 448.0f / most;
    per = most * (1.0f / 448.0f);
    if (POWERS) {
      const u32 bits = as_bits(per);
      const u32 exponent = (bits >> 23) + ((bits & 0x7fffffu) != 0);
      per = as_float(exponent << 23), scale = as_float((254 - exponent) << 23);
    }
    u32 words[4];
#pragma unroll
    for (u32 i = 0; i < MADE_OF; ++i) {
#pragma unroll
      for (u32 j = 0; j < Element::lanes; ++j) part[i][j] *= scale;
#pragma unroll
      for (u32 w = 0; w < Element::lanes / 4; ++w) {
        words[i * Element::lanes / 4 + w] = E4M3::word(part[i] + 4 * w);
      }
    }
    return {words[0], words[1], words[2], words[3]};
  }
};

constexpr u32 TELLER = BLOCKS / 2;  // the block that tells users how many there are

__device__ __forceinline__ u32 aligned(u32 lines) { return (lines + ALIGN - 1) / ALIGN * ALIGN; }

// The sum of the values of the lanes before this one.
__device__ __forceinline__ u32 sum_before(u32 value) {
  const u32 lane = threadIdx.x % 32;
  u32 sum = value;
#pragma unroll
  for (u32 d = 1; d < 32; d *= 2) {
    const u32 other = as_bits(__shfl_sync(0xffffffffu, as_float(sum), (lane - d) % 32));
    if (lane >= d) sum += other;
  }
  return sum - value;
}

// How many rows and choices there are of this rank, to every rank, and the first choice
// that is no expert: `of(e)` choices, `to(q)` rows.
template <class Of, class To>
__device__ __forceinline__ void tell_totals(const DispatchCall& call, const Peers& peers,
                                            u64 mark, u32 bad, Of of, To to) {
  for (u32 i = THREADS - 1 - threadIdx.x; i < EXPERTS + RANKS; i += THREADS) {
    if (i < EXPERTS) {
      put(peers.to[owner_of(i)] + TOTALS_AT, call.rank * MOST_LOCALS + local_of(i), of(i),
          mark);
      continue;
    }
    const u32 q = i - EXPERTS;
    const u64 heads = peers.to[q] + HEADS_AT, said = bad == NOBODYS ? 0 : bad + 1;
    put(heads, call.rank * 2, to(q) | said << 32, mark);
    if (said != 0) put(heads, call.rank * 2 + 1, static_cast<u64>(call.ids[bad]), mark);
  }
}

// Wait for how many rows came of each rank; false: leave. A rank that refuses its ids is
// told of here, by every rank.
template <class Shared>
__device__ __forceinline__ bool hear_heads(Shared& s, const Inboxes& from) {
  if (threadIdx.x < THREADS - RANKS) return true;
  bool ok = true;
  const u32 q = THREADS - 1 - threadIdx.x;
  const Inbox inbox = from.of(q, HEADS_AT);
  const u64 head = inbox.take(inbox.look(q * 2), q * 2, ok, 1);
  s.rows[q] = static_cast<u32>(head);
  if (ok && head >> 32 != 0) {
    const i64 id = inbox.take(inbox.look(q * 2 + 1), q * 2 + 1, ok, 1);
    const MemoryChannel& peer = inbox.from;
    ok = channel_gave_up(*peer.home, peer.rank, peer.peer, A_CHOICE,
                         static_cast<int>((head >> 32) - 1), static_cast<u64>(id), EXPERTS);
  }
  return ok;
}

// How many rows came of each rank for expert `e`.
struct Counts {
  u32 of[RANKS], total;

  __device__ __forceinline__ void hear(const Inboxes& from, u32 e, bool& ok) {
    Pair seen[RANKS];
#pragma unroll
    for (u32 q = 0; q < RANKS; ++q) {
      seen[q] = from.of(q, TOTALS_AT).look(q * MOST_LOCALS + e);
    }
#pragma unroll
    for (u32 q = 0; q < RANKS; ++q) {
      const Inbox inbox = from.of(q, TOTALS_AT);
      of[q] = static_cast<u32>(inbox.take(seen[q], q * MOST_LOCALS + e, ok, 1));
      total += of[q];
    }
  }
};

// Wait for how many rows came of each rank, and of each expert, and find where they are
// to lie, the same in every block; false: leave. A thread has an expert.
template <class Shared>
__device__ __forceinline__ bool hear_totals(const DispatchCall& call, Shared& s,
                                            const Inboxes& from) {
  bool ok = hear_heads(s, from);
  const bool tells = blockIdx.x == TELLER;
  if (!tells && LAYOUT != BY_EXPERT) return __syncthreads_and(ok);
  u32 end = 0;  // of the lines so far
  for (u32 first = 0; first < call.locals; first += THREADS) {
    const u32 e = first + threadIdx.x, warp = threadIdx.x / 32;
    Counts counts{};
    if (first != 0) __syncthreads();  // sums of the turn before have been read
    if (e < call.locals) counts.hear(from, e, ok);
    const u32 lines = aligned(counts.total), before = sum_before(lines);
    if (threadIdx.x % 32 == 31) s.groups[warp] = before + lines;
    __syncthreads();
    u32 start = end + before;
#pragma unroll
    for (u32 w = 0; w < WARPS; ++w) {
      if (w < warp) start += s.groups[w];
      end += s.groups[w];
    }
    if (e < call.locals) {
      s.totals[e] = counts.total;
      if (tells) call.counts[e] = counts.total, call.starts[e] = start;
#pragma unroll
      for (u32 q = 0; q < RANKS; ++q) {
        s.base[q * MOST_LOCALS + e] = start;
        start += counts.of[q];
      }
    }
  }
  if (!__syncthreads_and(ok)) return false;
  if (tells && threadIdx.x == 0) call.starts[call.locals] = end;
  if (tells && threadIdx.x < RANKS) call.sources[threadIdx.x] = s.rows[threadIdx.x];
  return true;
}

// Zeros between experts, where each begins at a multiple of ALIGN; no experts behind the
// rows of a rank.
template <class Shared>
__device__ __forceinline__ void fill_up(const DispatchCall& call,
                                        const Shared& s) {
  const u32 thread = blockIdx.x * THREADS + threadIdx.x, all = BLOCKS * THREADS;
  if (LAYOUT == BY_EXPERT && ALIGN > 1) {
    for (u32 e = blockIdx.x; e < call.locals; e += BLOCKS) {
      const u64 end = s.base[e] + s.totals[e];  // rank 0's rows are first
      const u32 lines = (ALIGN - s.totals[e] % ALIGN) % ALIGN;
      for (u32 i = threadIdx.x; i < lines * ROW_VECS; i += THREADS) {
        store_plain(reinterpret_cast<Vec*>(call.rows) + end * ROW_VECS + i, Vec{});
      }
      for (int i = threadIdx.x; i < int(lines) * GROUPS; i += THREADS) {
        call.scales[end * GROUPS + i] = 0;
      }
    }
  }
  if (LAYOUT == BY_RANK) {
    for (u32 i = thread; i < SLOTS * CHOICES; i += all) {
      const u32 q = i / CHOICES / MAX_TOKENS, slot = i / CHOICES % MAX_TOKENS;
      if (slot >= s.rows[q]) call.out_ids[i] = -1;
    }
  }
}

}  // namespace stretto
