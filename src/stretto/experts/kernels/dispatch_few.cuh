// dispatch_few.cuh -- a dispatch of few tokens: every block counts all, rows are packets.
//
// Who chose an expert, and who goes to a rank, are bits of tokens: what stands before a
// token is a number of bits. Warps send parts of rows, then take parts of the rows that
// came, each as soon as it is there.
#pragma once

#include "laid.cuh"
#include "packets.cuh"

namespace stretto {

constexpr u32 MASKS = (MAX_TOKENS + 31) / 32;
constexpr u32 ROW_PACKETS = (QUANTISED ? HIDDEN : HIDDEN * Element::size) / 8;
constexpr int SCALE_PACKETS = QUANTISED ? (VECS + 31) / 32 : 0;  // of a warp's vectors
constexpr u32 LANE_GROUPS = 32 * Element::lanes / 128;  // scales of a warp's vectors
constexpr u32 LOCAL_BITS = 11;  // of a local expert's number; places follow

struct DispatchShared {
  Peers peers;
  u32 takes[EXPERTS * MASKS];  // tokens that chose an expert
  u32 goes[RANKS * MASKS];     // tokens that go to a rank
  int chosen[MAX_TOKENS * CHOICES];
  float weights[MAX_TOKENS * CHOICES];
  u32 bad;    // the first choice that is no expert
  u32 twice;  // whether a token chose an expert twice
  u32 ends[RANKS];
  u32 totals[MOST_LOCALS];
  u32 groups[MOST_LOCALS / 16 + 1];
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

// Who chose what, of all tokens.
__device__ __forceinline__ void count_all(const DispatchCall& call, DispatchShared& s) {
  for (u32 i = threadIdx.x; i < EXPERTS * MASKS; i += THREADS) s.takes[i] = 0;
  if (threadIdx.x < RANKS * MASKS) s.goes[threadIdx.x] = 0;
  if (threadIdx.x == 0) s.bad = NOBODYS, s.twice = 0;
  __syncthreads();
  for (u32 i = threadIdx.x; i < call.tokens * CHOICES; i += THREADS) {
    const i64 id = call.ids[i];
    const float weight = call.weights == nullptr ? 1.0f : call.weights[i];
    const bool is_expert = id >= 0 && id < EXPERTS;
    s.weights[i] = weight;
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

// Choices, rows and totals: what rows are, and where they are to lie.
__device__ __forceinline__ void send_words(const DispatchCall& call,
                                           const DispatchShared& s, u64 mark) {
  const u32 tokens = call.tokens;
  const u32 many = tokens * RANKS * CHOICES;
  for (u32 u = threadIdx.x * BLOCKS + blockIdx.x; u < many; u += THREADS * BLOCKS) {
    const u32 j = u % CHOICES, q = u / CHOICES % RANKS, t = u / CHOICES / RANKS;
    const u32* goes = s.goes + q * MASKS;
    if (!has_bit(goes, t)) continue;
    const u64 line = call.rank * MAX_TOKENS + bits_before(goes, t);
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
  if (blockIdx.x != BLOCKS - 1) return;
  for (u32 i = threadIdx.x; i < EXPERTS + RANKS; i += THREADS) {
    if (i < EXPERTS) {
      put(s.peers.to[owner_of(i)] + TOTALS_AT, call.rank * MOST_LOCALS + local_of(i),
          chosen_before(s, i, tokens * CHOICES), mark);
      continue;
    }
    const u32 q = i - EXPERTS;
    const u64 rows = bits_before(s.goes + q * MASKS, tokens);
    const u64 to = s.peers.to[q] + HEADS_AT, at = call.rank * 2;
    const u64 bad = s.bad == NOBODYS ? 0 : s.bad + 1;
    put(to, at, rows | bad << 32, mark);
    if (bad != 0) put(to, at + 1, static_cast<u64>(call.ids[s.bad]), mark);
  }
}

// Parts of rows; the first was loaded before anything was counted.
struct Part {
  Vec v[PIECES];

  __device__ __forceinline__ void load(const DispatchCall& call, u32 u) {
    const u32 start = u % SEGMENTS * SEGMENT + threadIdx.x % 32;
    const Vec* from = call.x + u / SEGMENTS * u64(VECS) + start;
#pragma unroll
    for (u32 k = 0; k < PIECES; ++k) {
      v[k] = Vec{0, 0, 0, 0};
      if (u < call.tokens * SEGMENTS && start + 32 * k < VECS) v[k] = load_plain(from + 32 * k);
    }
  }

  __device__ __forceinline__ void send(const DispatchCall& call, const DispatchShared& s,
                                       u32 u, u64 mark) const {
    const u32 t = u / SEGMENTS, lane = threadIdx.x % 32;
#pragma unroll
    for (u32 k = 0; k < PIECES; ++k) {
      const u32 first = u % SEGMENTS * SEGMENT + 32 * k, index = first + lane;
      u32 words[2] = {0, 0};
      float scale = 0, other = 0;
      if constexpr (QUANTISED) {
        scale = quantise_vec(v[k], words);
        if constexpr (LANE_GROUPS == 2) other = __shfl_xor_sync(0xffffffffu, scale, 16);
      }
      for (u32 q = 0; q < RANKS; ++q) {
        const u32* goes = s.goes + q * MASKS;
        if (!has_bit(goes, t) || first >= VECS) continue;
        const u64 line = call.rank * MAX_TOKENS + bits_before(goes, t);
        const u64 to = s.peers.to[q] + ROWS_AT, row = line * ROW_PACKETS;
        if constexpr (!QUANTISED) {
          if (index < VECS) {
            put(to, row + index, v[k].x | static_cast<u64>(v[k].y) << 32, mark);
            put(to, row + VECS + index, v[k].z | static_cast<u64>(v[k].w) << 32, mark);
          }
        } else if constexpr (Element::lanes == 8) {
          if (index < VECS) {
            put(to, row + index, words[0] | static_cast<u64>(words[1]) << 32, mark);
          }
        } else {  // two lanes have a packet
          const float next = __shfl_xor_sync(0xffffffffu, as_float(words[0]), 1);
          if (index < VECS && lane % 2 == 0) {
            put(to, row + index / 2, words[0] | static_cast<u64>(as_bits(next)) << 32, mark);
          }
        }
        if (QUANTISED && lane == 0) {
          put(s.peers.to[q] + SCALES_AT, line * u32(SCALE_PACKETS) + first / 32,
              as_bits(scale) | static_cast<u64>(as_bits(other)) << 32, mark);
        }
      }
    }
  }
};

// How many rows came of each rank, and how many of each expert; false: leave.
__device__ __forceinline__ bool hear_totals(const DispatchCall& call, DispatchShared& s,
                                            const Inboxes& from) {
  bool ok = true;
  if (threadIdx.x >= THREADS - RANKS) {
    const u32 q = THREADS - 1 - threadIdx.x;
    const Inbox inbox = from.of(q, HEADS_AT);
    const u64 head = inbox.take(inbox.look(q * 2), q * 2, ok, 1);
    s.ends[q] = static_cast<u32>(head);
    if (ok && head >> 32 != 0) {
      const i64 id = inbox.take(inbox.look(q * 2 + 1), q * 2 + 1, ok, 1);
      const MemoryChannel& peer = inbox.from;
      ok = channel_gave_up(*peer.home, peer.rank, peer.peer, A_CHOICE,
                           static_cast<int>((head >> 32) - 1), static_cast<u64>(id),
                           EXPERTS);
    }
  }
  if (LAYOUT == BY_EXPERT || blockIdx.x == 0) {
    for (u32 i = threadIdx.x; i < RANKS * call.locals; i += THREADS) {
      const u32 q = i / call.locals, at = q * MOST_LOCALS + i % call.locals;
      const Inbox inbox = from.of(q, TOTALS_AT);
      s.base[at] = static_cast<u32>(inbox.take(inbox.look(at), at, ok, 1));
    }
  }
  return __syncthreads_and(ok);
}

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
  float* out = call.scales + to * GROUPS + i * LANE_GROUPS;
  out[0] = as_float(static_cast<u32>(value));
  if (LANE_GROUPS == 2 && int(i * 2 + 1) < GROUPS) out[1] = as_float(static_cast<u32>(value >> 32));
}

// A part of a row that came: of its bytes, as many as a lane has in packets.
struct ComingPart {
  static constexpr u32 per = QUANTISED ? 1 : 2;  // packets of an item
  static constexpr u32 items = ROW_PACKETS / per;
  Pair seen[PIECES][per];

  __device__ __forceinline__ void look(const Inbox& rows, u64 row, u32 start) {
#pragma unroll
    for (u32 k = 0; k < PIECES; ++k) {
#pragma unroll
      for (u32 h = 0; h < per; ++h) {
        const u32 i = start + 32 * k;
        if (i < items) seen[k][h] = rows.look(row + h * items + i);
      }
    }
  }
  __device__ __forceinline__ void take(const Inbox& rows, u64 row, u32 start,
                                       u64 (&found)[PIECES][per], bool& ok) const {
#pragma unroll
    for (u32 k = 0; k < PIECES; ++k) {
#pragma unroll
      for (u32 h = 0; h < per; ++h) {
        const u32 i = start + 32 * k;
        if (i < items) found[k][h] = rows.take(seen[k][h], row + h * items + i, ok, 2);
      }
    }
  }
  __device__ __forceinline__ static void store(const DispatchCall& call, u64 line,
                                               u32 start,
                                               const u64 (&found)[PIECES][per]) {
    u8* out = call.rows + line * (ROW_PACKETS * 8);
#pragma unroll
    for (u32 k = 0; k < PIECES; ++k) {
      const u32 i = start + 32 * k;
      if (i >= items) continue;
      if constexpr (per == 1) {
        reinterpret_cast<u64*>(out)[i] = found[k][0];
      } else {
        const Vec v{static_cast<u32>(found[k][0]), static_cast<u32>(found[k][0] >> 32),
                    static_cast<u32>(found[k][1]), static_cast<u32>(found[k][1] >> 32)};
        store_plain(reinterpret_cast<Vec*>(out) + i, v);
      }
    }
  }
};

// Everything that came, as the layout says, each part as soon as it is there.
__device__ __forceinline__ bool take_rows(const DispatchCall& call, DispatchShared& s,
                                          const Inboxes& from) {
  constexpr u32 parts = (ComingPart::items + SEGMENT - 1) / SEGMENT;
  const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const u32 units = s.ends[RANKS - 1] * parts;
  bool ok = true;
  for (u32 u = warp * BLOCKS + blockIdx.x; u < units; u += WARPS * BLOCKS) {
    const Came row = came(s.ends, u / parts);
    const Inbox rows = from.of(row.source, ROWS_AT);
    const u64 line = row.source * MAX_TOKENS + row.slot;
    const u32 start = u % parts * SEGMENT + lane;
    const bool tells = u % parts == 0;
    ComingPart part;
    part.look(rows, line * ROW_PACKETS, start);
    const OfRow choices(from.of(row.source, CHOICES_AT), line * CHOICES, CHOICES,
                        LAYOUT == BY_EXPERT || tells);
    const OfRow token(from.of(row.source, TOKENS_AT), line, 1, tells);
    const OfRow scales(from.of(row.source, SCALES_AT), line * u32(SCALE_PACKETS),
                       u32(SCALE_PACKETS), QUANTISED && tells);
    take_choices(call, s, choices, row, tells, ok);
    token.each(ok, [&](u32, u64 value) { call.out_tokens[row.line] = static_cast<int>(value); });
    u64 found[PIECES][ComingPart::per];
    part.take(rows, line * ROW_PACKETS, start, found, ok);
    if constexpr (LAYOUT != BY_EXPERT) {
      ComingPart::store(call, row.line, start, found);
      scales.each(ok, [&](u32 i, u64 value) { store_scales(call, row.line, i, value); });
    } else {
      const u32* places = s.places + warp * CHOICES;
      for (u32 j = 0; j < CHOICES; ++j) {
        if (places[j] != NOBODYS) ComingPart::store(call, places[j], start, found);
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
  const u64 epoch = mine[call.rank].epoch(), half = (epoch & 1) * HALF;
  const u32 flag = static_cast<u32>(epoch), warp = threadIdx.x / 32;
  const u64 mark = static_cast<u64>(flag) << 32;
  u32 u = warp * BLOCKS + blockIdx.x;
  Part part;
  part.load(call, u);
  find_peers(s.peers, mine, half);
  count_all(call, s);
  for (; u < call.tokens * SEGMENTS; u += WARPS * BLOCKS) {
    part.send(call, s, u, mark);
    part.load(call, u + WARPS * BLOCKS);
  }
  send_words(call, s, mark);
  for (u32 i = blockIdx.x * THREADS + threadIdx.x; i < call.tokens * RANKS;
       i += BLOCKS * THREADS) {
    const u32* goes = s.goes + i % RANKS * MASKS;
    const u32 t = i / RANKS;
    call.slots[i] = has_bit(goes, t) ? static_cast<int>(bits_before(goes, t)) : -1;
  }
  const Inboxes from{mine, s.peers.here, half, flag};
  if (!hear_totals(call, s, from)) return;
  place_rows(call, s);
  const bool ok = take_rows(call, s, from);
  fill_up(call, s);
  if (!__syncthreads_and(ok)) return;
  if (threadIdx.x == 0) mine[call.rank].end_call();
}

}  // namespace stretto

extern "C" __global__ void __launch_bounds__(stretto::THREADS)
    stretto_dispatch(const stretto::DispatchCall call) {
  STRETTO_SHARED(stretto::DispatchShared, shared);
  stretto::dispatch_rows(call, shared);
}
