// dispatch_few.cuh -- a dispatch of few tokens: every block counts all, rows are packets.
//
// Who chose an expert, and who goes to a rank, are bits of tokens: what stands before a
// token is a number of bits. Warps send parts of rows, then take parts of the rows that
// came, each as soon as it is there. What is short is what counts here: a warp has as
// little as there is to do, words are sent by warps that have no rows, and what is loaded
// first depends on nothing.
#pragma once

#include "laid.cuh"

namespace stretto {

constexpr u32 MASKS = (MAX_TOKENS + 31) / 32;
constexpr u32 ROW_PACKETS = 2 * ROW_VECS;
constexpr int SCALE_PACKETS = (GROUPS + 1) / 2;  // two scales in each
constexpr u32 OF_WARP = 32;  // vectors that a warp has one a lane
// How many of those a warp has at once, where there are so many in all.
constexpr u32 at_once(u32 many) {
  return many <= WARPS * BLOCKS ? 1 : many <= 2 * WARPS * BLOCKS ? 2 : 4;
}
constexpr u32 parts_of(u32 many, u32 each) { return (many + each - 1) / each; }
constexpr u32 SENT = at_once(MAX_TOKENS * parts_of(ROW_VECS, OF_WARP));
constexpr u32 SENT_PARTS = parts_of(ROW_VECS, SENT * OF_WARP);  // of a row
constexpr u32 TAKEN = at_once(SLOTS * parts_of(ROW_VECS, OF_WARP));
constexpr u32 TAKEN_PARTS = parts_of(ROW_VECS, TAKEN * OF_WARP);
constexpr u32 LOCAL_BITS = 11;  // of a local expert's number; places follow

struct DispatchShared {
  Peers peers;
  u32 takes[EXPERTS * MASKS];  // tokens that chose an expert
  u32 goes[RANKS * MASKS];     // tokens that go to a rank
  int chosen[MAX_TOKENS * CHOICES];
  float weights[MAX_TOKENS * CHOICES];
  u32 bad;    // the first choice that is no expert
  u32 twice;  // whether a token chose an expert twice
  u32 rows[RANKS];  // that came of each
  u32 totals[MOST_LOCALS];
  u32 groups[WARPS];
  u32 base[RANKS * MOST_LOCALS];  // where each rank's rows of an expert begin
  u32 places[WARPS * CHOICES];
};

__device__ __forceinline__ u32 bits_before(const u32* masks, u32 t) {
  u32 count = 0;
#pragma unroll
  for (u32 w = 0; w < MASKS; ++w) {
    const u32 bits = w < t / 32 ? ~0u : w == t / 32 ? (1u << t % 32) - 1 : 0;
    count += __popc(masks[w] & bits);
  }
  return count;
}

__device__ __forceinline__ bool has_bit(const u32* masks, u32 t) {
  return masks[t / 32] >> t % 32 & 1;
}

// A thread's choice, loaded before anything else.
struct Choice {
  i64 id;
  float weight;

  __device__ __forceinline__ void load(const DispatchCall& call, u32 i) {
    if (i >= call.tokens * CHOICES) return;
    id = call.ids[i];
    weight = call.weights == nullptr ? 1.0f : call.weights[i];
  }
};

// Who chose what, of all tokens; `choice` is this thread's first, `to` a peer's memory.
__device__ __forceinline__ void count_all(const DispatchCall& call, DispatchShared& s,
                                          Choice choice, u64 to) {
  for (u32 i = threadIdx.x; i < EXPERTS * MASKS; i += THREADS) s.takes[i] = 0;
  if (threadIdx.x < RANKS * MASKS) s.goes[threadIdx.x] = 0;
  if (threadIdx.x == 0) s.bad = NOBODYS, s.twice = 0;
  __syncthreads();  // nobody waits for what is being loaded
  if (threadIdx.x < RANKS) s.peers.to[threadIdx.x] = to;
  for (u32 i = threadIdx.x; i < call.tokens * CHOICES; i += THREADS) {
    if (i != threadIdx.x) choice.load(call, i);
    const i64 id = choice.id;
    const bool is_expert = id >= 0 && id < EXPERTS;
    s.weights[i] = choice.weight;
    s.chosen[i] = is_expert ? static_cast<int>(id) : -1;
    if (id < -1 || id >= EXPERTS) atomicMin(&s.bad, i);
    if (!is_expert) continue;
    const u32 e = static_cast<u32>(id), w = i / CHOICES / 32, bit = 1u << i / CHOICES % 32;
    if (atomicOr(&s.takes[e * MASKS + w], bit) & bit) s.twice = 1;
    atomicOr(&s.goes[owner_of(e) * MASKS + w], bit);
  }
  __syncthreads();
}

// How many of the first `many` choices are of an expert.
__device__ __forceinline__ u32 chosen_before(const DispatchShared& s, u32 e, u32 many) {
  if (!s.twice) return bits_before(s.takes + e * MASKS, many / CHOICES);
  u32 count = 0;
  for (u32 i = 0; i < many; ++i) count += s.chosen[i] == static_cast<int>(e);
  return count;
}

// Choices and tokens: what rows are. By the last warps first, which have the fewest rows.
__device__ __forceinline__ void send_words(const DispatchCall& call,
                                           const DispatchShared& s, u64 mark) {
  const u32 tokens = call.tokens, thread = THREADS - 1 - threadIdx.x;
  const u32 many = tokens * RANKS * CHOICES;
  for (u32 u = thread * BLOCKS + blockIdx.x; u < many; u += THREADS * BLOCKS) {
    const u32 j = u % CHOICES, q = u / CHOICES % RANKS, t = u / CHOICES / RANKS;
    const u32* goes = s.goes + q * MASKS;
    const bool is_sent = has_bit(goes, t);
    const u32 slot = bits_before(goes, t);
    if (j == 0) call.slots[t * RANKS + q] = is_sent ? static_cast<int>(slot) : -1;
    if (!is_sent) continue;
    const u64 line = call.rank * MAX_TOKENS + slot;
    const u32 i = t * CHOICES + j;
    const int e = s.chosen[i];
    u32 choice = NOBODYS;
    if (e >= 0 && owner_of(e) == q) {
      choice = local_of(e) | chosen_before(s, e, i) << LOCAL_BITS;
    }
    put(s.peers.to[q] + CHOICES_AT, line * CHOICES + j,
        choice | static_cast<u64>(as_bits(s.weights[i])) << 32, mark);
    if (j == 0) put(s.peers.to[q] + TOKENS_AT, line, t, mark);
  }
}

// Parts of rows; the first was loaded before anything was counted.
struct Part {
  Item items[SENT];

  __device__ __forceinline__ void load(const DispatchCall& call, u32 u) {
    const u32 start = u % SENT_PARTS * SENT * OF_WARP + threadIdx.x % 32;
    const Vec* row = call.x + u / SENT_PARTS * u64(VECS);
#pragma unroll
    for (u32 k = 0; k < SENT; ++k) {
      const u32 index = start + 32 * k;
      items[k].load(row, index, u < call.tokens * SENT_PARTS && index < ROW_VECS);
    }
  }

  __device__ __forceinline__ void send(const DispatchCall& call, const DispatchShared& s,
                                       u32 u, u64 mark) const {
    const u32 t = u / SENT_PARTS, start = u % SENT_PARTS * SENT * OF_WARP + threadIdx.x % 32;
    Vec made[SENT];
    float scales[SENT] = {}, others[SENT] = {};
#pragma unroll
    for (u32 k = 0; k < SENT; ++k) {
      made[k] = items[k].made(scales[k]);
      if (QUANTISED) others[k] = __shfl_xor_sync(0xffffffffu, scales[k], 8);
    }
#pragma unroll
    for (u32 q = 0; q < RANKS; ++q) {
      const u32* goes = s.goes + q * MASKS;
      if (!has_bit(goes, t)) continue;
      const u64 line = call.rank * MAX_TOKENS + bits_before(goes, t), to = s.peers.to[q];
#pragma unroll
      for (u32 k = 0; k < SENT; ++k) {
        const u32 index = start + 32 * k;
        if (index >= ROW_VECS) continue;
        put_vec(to + ROWS_AT, line * ROW_PACKETS, ROW_VECS, index, made[k], mark);
        if (QUANTISED && index % 16 == 0) {
          put(to + SCALES_AT, line * u32(SCALE_PACKETS) + index / 16,
              as_bits(scales[k]) | static_cast<u64>(as_bits(others[k])) << 32, mark);
        }
      }
    }
  }
};

// Packets of a row by the lanes of a warp; each lane's first is looked at beforehand.
struct OfRow {
  Inbox inbox;
  u64 first;
  u32 many;
  Pair seen;

  __device__ __forceinline__ OfRow(const Inbox& inbox, u64 first, u32 many, bool wants)
      : inbox(inbox), first(first), many(wants ? many : 0), seen{} {
    if (threadIdx.x % 32 < this->many) seen = inbox.look(first + threadIdx.x % 32);
  }
  // `take(i, value)` of every packet.
  template <class Take>
  __device__ __forceinline__ void each(bool& ok, Take take) const {
    for (u32 i = threadIdx.x % 32; i < many; i += 32) {
      const Pair found = i < 32 ? seen : inbox.look(first + i);
      take(i, inbox.take(found, first + i, ok, 2));
    }
  }
};

// A row's choices: where each lies, to the lanes of this warp, and for the way back.
__device__ __forceinline__ void take_choices(const DispatchCall& call, DispatchShared& s,
                                             const OfRow& choices, const Came& row,
                                             bool tells, bool& ok) {
  u32* places = s.places + threadIdx.x / 32 * CHOICES;
  choices.each(ok, [&](u32 j, u64 value) {
    const u32 choice = ok ? static_cast<u32>(value) : NOBODYS;
    const u32 e = choice & ((1u << LOCAL_BITS) - 1);
    u32 place = NOBODYS;
    if (choice != NOBODYS && LAYOUT == BY_EXPERT) {
      place = s.base[row.source * MOST_LOCALS + e] + (choice >> LOCAL_BITS);
    }
    places[j] = place;
    if (!tells) return;
    const u64 to = u64(row.line) * CHOICES + j;
    call.out_ids[to] = choice == NOBODYS ? -1 : static_cast<int>(e);
    call.out_weights[to] = as_float(static_cast<u32>(value >> 32));
    if (LAYOUT == BY_EXPERT) call.out_places[to] = static_cast<int>(place);
  });
  __syncwarp();
}

// Scales of a row, to a line of the output.
__device__ __forceinline__ void store_scales(const DispatchCall& call, u64 to, u32 i,
                                             u64 value) {
  float* out = call.scales + to * GROUPS + i * 2;
  out[0] = as_float(static_cast<u32>(value));
  if (int(i * 2 + 1) < GROUPS) out[1] = as_float(static_cast<u32>(value >> 32));
}

// A part of a row that came, to a line of the output.
__device__ __forceinline__ void store_part(const DispatchCall& call, u64 line, u32 start,
                                           const Vec (&found)[TAKEN]) {
  Vec* out = reinterpret_cast<Vec*>(call.rows) + line * ROW_VECS;
#pragma unroll
  for (u32 k = 0; k < TAKEN; ++k) {
    if (start + 32 * k < ROW_VECS) store_plain(out + start + 32 * k, found[k]);
  }
}

// Everything that came, as the layout says, each part as soon as it is there.
__device__ __forceinline__ bool take_rows(const DispatchCall& call, DispatchShared& s,
                                          const Inboxes& from) {
  const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const u32 units = all_rows(s.rows) * TAKEN_PARTS;
  bool ok = true;
  for (u32 u = warp * BLOCKS + blockIdx.x; u < units; u += WARPS * BLOCKS) {
    const Came row = came(s.rows, u / TAKEN_PARTS);
    const Inbox rows = from.of(row.source, ROWS_AT);
    const u64 line = row.source * MAX_TOKENS + row.slot, at = line * ROW_PACKETS;
    const u32 start = u % TAKEN_PARTS * TAKEN * OF_WARP + lane;
    const bool tells = u % TAKEN_PARTS == 0;
    Coming part[TAKEN];
#pragma unroll
    for (u32 k = 0; k < TAKEN; ++k) {
      if (start + 32 * k < ROW_VECS) part[k].look(rows, at, ROW_VECS, start + 32 * k);
    }
    const OfRow choices(from.of(row.source, CHOICES_AT), line * CHOICES, CHOICES,
                        LAYOUT == BY_EXPERT || tells);
    const OfRow token(from.of(row.source, TOKENS_AT), line, 1, tells);
    const OfRow scales(from.of(row.source, SCALES_AT), line * u32(SCALE_PACKETS),
                       u32(SCALE_PACKETS), QUANTISED && tells);
    take_choices(call, s, choices, row, tells, ok);
    token.each(ok, [&](u32, u64 value) { call.out_tokens[row.line] = static_cast<int>(value); });
    Vec found[TAKEN];
#pragma unroll
    for (u32 k = 0; k < TAKEN; ++k) {
      if (start + 32 * k >= ROW_VECS) continue;
      found[k] = part[k].take(rows, at, ROW_VECS, start + 32 * k, ok);
    }
    if constexpr (LAYOUT != BY_EXPERT) {
      store_part(call, row.line, start, found);
      scales.each(ok, [&](u32 i, u64 value) { store_scales(call, row.line, i, value); });
    } else {
      const u32* places = s.places + warp * CHOICES;
      for (u32 j = 0; j < CHOICES; ++j) {
        if (places[j] != NOBODYS) store_part(call, places[j], start, found);
      }
      scales.each(ok, [&](u32 i, u64 value) {
        for (u32 j = 0; j < CHOICES; ++j) {
          if (places[j] != NOBODYS) store_scales(call, places[j], i, value);
        }
      });
      __syncwarp();  // before its places are others'
    }
  }
  return ok;
}

__device__ __forceinline__ void dispatch_rows(const DispatchCall& call,
                                              DispatchShared& s) {
  const MemoryChannel* mine = call.channels + blockIdx.x * RANKS;
  const u64 epoch = call.epochs[blockIdx.x] + 1, half = (epoch & 1) * HALF;
  const u32 flag = static_cast<u32>(epoch), warp = threadIdx.x / 32;
  const u64 mark = static_cast<u64>(flag) << 32;
  u32 u = warp * BLOCKS + blockIdx.x;
  Choice choice{-1, 1.0f};
  choice.load(call, threadIdx.x);
  Part part;
  part.load(call, u);
  const u64 to = threadIdx.x < RANKS ? mine[threadIdx.x].remote + half : 0;
  count_all(call, s, choice, to);
  if (blockIdx.x == BLOCKS - 1) {
    const u32 tokens = call.tokens;
    tell_totals(
        call, s.peers, mark, s.bad,
        [&](u32 e) { return chosen_before(s, e, tokens * CHOICES); },
        [&](u32 q) { return bits_before(s.goes + q * MASKS, tokens); });
  }
  for (; u < call.tokens * SENT_PARTS; u += WARPS * BLOCKS) {
    part.send(call, s, u, mark);
    part.load(call, u + WARPS * BLOCKS);
  }
  send_words(call, s, mark);
  const Inboxes from{mine, mine[call.rank].local + half, half, flag};
  if (!hear_totals(call, s, from)) return;
  const bool ok = take_rows(call, s, from);
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
