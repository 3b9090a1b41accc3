// laid.cuh -- what kernels of few and of many tokens share: parameters, fp8, places.
#pragma once

#include "places.cuh"

namespace stretto {

struct DispatchCall {
  const MemoryChannel* channels;
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
  u64* blocks;      // BlockState of each
  u32 tokens, rank, locals;  // locals: experts of this rank
  u32 half;  // by rank: of which memory `rows` is a part
};

struct CombineCall {
  const MemoryChannel* channels;
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
  const MemoryChannel* dispatches;
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

// Make fp8 of a vector of elements; all lanes of a warp are here. Returns its scale.
__device__ __forceinline__ float quantise_vec(const Vec& v, u32 (&words)[2]) {
  float part[Element::lanes], most = 1e-4f;
  Element::unpack(v, part);
#pragma unroll
  for (u32 i = 0; i < Element::lanes; ++i) {
    const float size = as_float(as_bits(part[i]) & 0x7fffffffu);
    if (size > most) most = size;
  }
#pragma unroll
  for (u32 d = 128 / Element::lanes / 2; d > 0; d /= 2) {
    const float other = __shfl_xor_sync(0xffffffffu, most, d);
    if (other > most) most = other;
  }
  float scale = 448.0f / most, per = most * (1.0f / 448.0f);
  if (POWERS) {
    const u32 bits = as_bits(per);
    const u32 exponent = (bits >> 23) + ((bits & 0x7fffffu) != 0);
    per = as_float(exponent << 23), scale = as_float((254 - exponent) << 23);
  }
#pragma unroll
  for (u32 i = 0; i < Element::lanes; ++i) part[i] *= scale;
#pragma unroll
  for (u32 w = 0; w < Element::lanes / 4; ++w) words[w] = E4M3::word(part + 4 * w);
  return per;
}

// Where everything that came is to lie, the same in every block: of `s.ends`, rows of each
// rank, and `s.base`, rows of each rank for each expert, make where they end, and begin.
template <class Shared>
__device__ __forceinline__ void place_rows(const DispatchCall& call, Shared& s) {
  constexpr u32 group = 16;
  const bool tells = blockIdx.x == 0, places = LAYOUT == BY_EXPERT || tells;
  for (u32 e = threadIdx.x; e < call.locals && places; e += THREADS) {
    u32 total = 0;
    for (u32 q = 0; q < RANKS; ++q) {
      const u32 count = s.base[q * MOST_LOCALS + e];
      s.base[q * MOST_LOCALS + e] = total;
      total += count;
    }
    s.totals[e] = total;
    if (tells) call.counts[e] = total;
  }
  if (threadIdx.x == 0) {
    u32 end = 0;
    for (u32 q = 0; q < RANKS; ++q) {
      if (tells) call.sources[q] = s.ends[q];
      s.ends[q] = end += s.ends[q];
    }
  }
  __syncthreads();
  const auto lines = [&](u32 e) { return (s.totals[e] + ALIGN - 1) / ALIGN * ALIGN; };
  for (u32 g = threadIdx.x; g * group < call.locals && places; g += THREADS) {
    u32 sum = 0;
    for (u32 e = g * group; e < least((g + 1) * group, call.locals); ++e) sum += lines(e);
    s.groups[g] = sum;
  }
  __syncthreads();
  for (u32 e = threadIdx.x; e <= call.locals && places; e += THREADS) {
    u32 start = 0;
    for (u32 g = 0; g < e / group; ++g) start += s.groups[g];
    for (u32 d = e / group * group; d < e; ++d) start += lines(d);
    for (u32 q = 0; q < RANKS && e < call.locals; ++q) s.base[q * MOST_LOCALS + e] += start;
    if (tells) call.starts[e] = start;
  }
  __syncthreads();
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
      const u32 rows = s.ends[q] - (q == 0 ? 0 : s.ends[q - 1]);
      if (slot >= rows) call.out_ids[i] = -1;
    }
  }
}

}  // namespace stretto
