// sum.cuh -- a sum over all ranks, a byte an element on the wire: one kernel.
//
// Every rank owns a part. A warp has units of 512 elements, 16 a lane; eight lanes have a
// block of 128, and make its scale together. Each block of threads gives its units to
// their owners and signals; the owner's block of the same number adds them in order of
// ranks, gives the sum to everybody and signals; then everybody makes elements of it.
// A unit is always the same block's, so blocks meet those of their own number alone. What
// a rank owns itself goes over no wire, and is rounded as if it had.
//
// Peers write two records a rank: of its elements, and of its sum; each twice, in turn.
// Who begins call e + 2 has heard in e + 1 that all had left call e. Behind the records
// each peer writes the name of its call, before it signals for the first time: sums of
// other sizes, types or wires are no sum of these, and both say so.
#pragma once

namespace stretto {

constexpr u32 WARPS = THREADS / 32, LANE = 16, UNIT = 32 * LANE, GROUP = 128;
constexpr u32 LANE_VECS = LANE / Element::lanes, LANES_A_GROUP = GROUP / LANE;
constexpr int FIRST = 1;  // of two meetings
constexpr u32 ALL_WARPS = WARPS * BLOCKS, EVERYBODY = 0xffffffffu;

// A call: where its arrays lie, how many elements there are, how many a part has, for how
// many there is room; and a fingerprint of what is called.
struct SumCall {
  const MemoryChannel* channels;
  u64 x, out, count, each, room, rank, name;
};

struct Sum : SumCall {
  const MemoryChannel* mine;
  u64 half, record_bytes, units;
  u32 warp;  // its number among all warps

  __device__ __forceinline__ explicit Sum(const SumCall& call)
      : SumCall(call),
        mine(channels + blockIdx.x * RANKS),
        record_bytes(room + room / GROUP * 4),
        units(each / UNIT),
        warp(blockIdx.x + threadIdx.x / 32 * BLOCKS) {
    half = (mine[rank].epoch() & 1) * 2 * RANKS * record_bytes;
  }
  // The record of rank q's elements (sums: 0), or of its sum (1), in ours or a peer's.
  __device__ __forceinline__ u64 record(u64 base, u32 sums, u32 q) const {
    return base + half + (sums * RANKS + q) * record_bytes;
  }
  // Where rank q writes the name of its call.
  __device__ __forceinline__ u64* name_of(u64 base, u32 q) const {
    return reinterpret_cast<u64*>(base + 4 * RANKS * record_bytes) + q;
  }
  __device__ __forceinline__ Vec* bytes(u64 record, u64 unit) const {
    return reinterpret_cast<Vec*>(record + unit * UNIT) + threadIdx.x % 32;
  }
  __device__ __forceinline__ u32* scale(u64 record, u64 unit) const {
    const u64 group = unit * (UNIT / GROUP) + threadIdx.x % 32 / LANES_A_GROUP;
    return reinterpret_cast<u32*>(record + room) + group;
  }
  __device__ __forceinline__ void put(u64 record, u64 unit, const Vec& v,
                                      float per) const {
    store_relaxed(bytes(record, unit), v);
    if (threadIdx.x % LANES_A_GROUP == 0) {
      store_relaxed_word(scale(record, unit), as_bits(per));
    }
  }
  __device__ __forceinline__ u64 first_of(u32 q, u64 unit) const {
    return q * each + unit * UNIT + threadIdx.x % 32 * LANE;
  }
};

// What thread q tells rank q, and hears of it: signals of a channel, counted here.
struct Bell {
  const Sum& sum;
  const MemoryChannel* channel;
  u64 outbox, inbox, sent, seen;
  bool rings;

  __device__ __forceinline__ explicit Bell(const Sum& sum)
      : sum(sum),
        channel(sum.mine + threadIdx.x),
        rings(threadIdx.x < RANKS && threadIdx.x != sum.rank) {
    if (!rings) return;
    outbox = channel->outbox, inbox = channel->inbox;
    const u64* counts = reinterpret_cast<const u64*>(channel->counts);
    sent = counts[0], seen = counts[1];
  }
  // Tell every peer's block of this number that all before is done, and hear it; false:
  // leave.
  __device__ __forceinline__ bool meet(int step) {
    __syncthreads();
    bool ok = true;
    if (rings) {
      store_release(reinterpret_cast<u64*>(outbox), ++sent);
      ok = await_word(*channel->home, channel->rank, channel->peer, A_SIGNAL, step,
                      reinterpret_cast<const u64*>(inbox), ++seen,
                      static_cast<u32>(sum.name));
      fence();
      if (step == FIRST) ok = ok && is_same();
    }
    return __syncthreads_and(ok);
  }
  // Tell every peer what is called: one block does, before it rings.
  __device__ __forceinline__ void tell() const {
    if (!rings || blockIdx.x != 0) return;
    store_relaxed_word(sum.name_of(channel->remote, channel->rank), sum.name);
  }
  // Whether the peer, which has rung, called the same; its next call waits for us.
  __device__ __forceinline__ bool is_same() const {
    if (blockIdx.x != 0) return true;
    const u64 said = load_relaxed_word(sum.name_of(channel->local, channel->peer));
    return said == sum.name ||
           channel_gave_up(*channel->home, channel->rank, channel->peer, A_CALL, FIRST,
                           said, sum.name, static_cast<u32>(sum.name));
  }
  __device__ __forceinline__ void keep() const {
    if (!rings) return;
    u64* counts = reinterpret_cast<u64*>(channel->counts);
    counts[0] = sent, counts[1] = seen;
  }
};

// 16 elements of a lane; what lies behind the end is 0.
__device__ __forceinline__ void load_lane(const Sum& s, u64 first, Vec (&v)[LANE_VECS]) {
  const u64 at = s.x + first * Element::size;
  if (first + LANE <= s.count && at % 16 == 0) {
#pragma unroll
    for (u32 k = 0; k < LANE_VECS; ++k) v[k] = load_plain(reinterpret_cast<Vec*>(at) + k);
    return;
  }
#pragma unroll
  for (u32 k = 0; k < LANE_VECS; ++k) {
    u32 words[4] = {0, 0, 0, 0};
#pragma unroll
    for (u32 i = 0; i < Element::lanes; ++i) {
      const u64 index = first + k * Element::lanes + i;
      if (index >= s.count) continue;
      if constexpr (Element::size == 2) {
        const u32 raw = reinterpret_cast<const u16*>(s.x)[index];
        words[i / 2] |= raw << (16 * (i % 2));
      } else {
        words[i] = reinterpret_cast<const u32*>(s.x)[index];
      }
    }
    v[k] = Vec{words[0], words[1], words[2], words[3]};
  }
}

__device__ __forceinline__ void store_lane(const Sum& s, u64 first,
                                           const float (&value)[LANE]) {
  const u64 at = s.out + first * Element::size;
#pragma unroll
  for (u32 k = 0; k < LANE_VECS; ++k) {
    float some[Element::lanes];
#pragma unroll
    for (u32 i = 0; i < Element::lanes; ++i) some[i] = value[k * Element::lanes + i];
    const Vec v = Element::pack(some);
    if (first + LANE <= s.count && at % 16 == 0) {
      store_plain(reinterpret_cast<Vec*>(at) + k, v);
      continue;
    }
    const u32 words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (u32 i = 0; i < Element::lanes; ++i) {
      const u64 index = first + k * Element::lanes + i;
      if (index >= s.count) continue;
      if constexpr (Element::size == 2) {
        reinterpret_cast<u16*>(s.out)[index] =
            static_cast<u16>(words[i / 2] >> (16 * (i % 2)));
      } else {
        reinterpret_cast<u32*>(s.out)[index] = words[i];
      }
    }
  }
}

// Make bytes of a lane's elements; all lanes of a warp are here. Returns what each byte
// stands for a multiple of: NaN where something in the block is not finite.
__device__ __forceinline__ float pack_lane(const float (&value)[LANE], Vec& made) {
  u32 largest = 0;
#pragma unroll
  for (u32 i = 0; i < LANE; ++i) {
    const u32 size = as_bits(value[i]) & 0x7fffffffu;
    if (size > largest) largest = size;
  }
#pragma unroll
  for (u32 d = LANES_A_GROUP / 2; d > 0; d /= 2) {
    const u32 other = as_bits(__shfl_xor_sync(EVERYBODY, as_float(largest), d));
    if (other > largest) largest = other;
  }
  made = Vec{0, 0, 0, 0};
  if (largest > 0x7f7fffffu) return as_float(0x7fc00000u);
  constexpr float least = 0x1p-100f;
  const float most = as_float(largest) > least ? as_float(largest) : least;
  const float scale = (WHOLE ? 127.0f : 448.0f) / most;
  u32 words[4] = {0, 0, 0, 0};
#pragma unroll
  for (u32 w = 0; w < 4; ++w) {
    float four[4];
#pragma unroll
    for (u32 i = 0; i < 4; ++i) four[i] = value[4 * w + i] * scale;
    if constexpr (WHOLE) {
#pragma unroll
      for (u32 i = 0; i < 4; ++i) {
        words[w] |= (as_bits(four[i] + 12582912.0f) & 0xffu) << (8 * i);
      }
    } else {
      words[w] = E4M3::word(four);
    }
  }
  made = Vec{words[0], words[1], words[2], words[3]};
  return most * (WHOLE ? 1.0f / 127.0f : 1.0f / 448.0f);
}

__device__ __forceinline__ void unpack_lane(const Vec& v, float per,
                                            float (&value)[LANE]) {
  const u32 words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (u32 i = 0; i < LANE; ++i) {
    const u32 raw = words[i / 4] >> (8 * (i % 4)) & 0xffu;
    if constexpr (WHOLE) {  // a conversion takes the time of four additions
      value[i] = (as_float((raw ^ 0x80u) | 0x4b000000u) - 8388736.0f) * per;
    } else {
      value[i] = E4M3::widen(raw) * per;
    }
  }
}

__device__ __forceinline__ float pack_elements(const Vec (&v)[LANE_VECS], Vec& made) {
  float value[LANE];
#pragma unroll
  for (u32 k = 0; k < LANE_VECS; ++k) {
    float some[Element::lanes];
    Element::unpack(v[k], some);
#pragma unroll
    for (u32 e = 0; e < Element::lanes; ++e) value[k * Element::lanes + e] = some[e];
  }
  return pack_lane(value, made);
}

// This rank's elements of the others' parts, to their owners: the next rank first.
__device__ __forceinline__ void give(const Sum& s) {
  for (u32 i = 1; i < RANKS; ++i) {
    const u32 q = (s.rank + i) % RANKS;
    const u64 record = s.record(s.mine[q].remote, 0, s.rank);
    Vec next[LANE_VECS];
    if (s.warp < s.units) load_lane(s, s.first_of(q, s.warp), next);
    for (u64 unit = s.warp; unit < s.units; unit += ALL_WARPS) {
      Vec now[LANE_VECS], made;
#pragma unroll
      for (u32 k = 0; k < LANE_VECS; ++k) now[k] = next[k];
      if (unit + ALL_WARPS < s.units) load_lane(s, s.first_of(q, unit + ALL_WARPS), next);
      const float per = pack_elements(now, made);
      s.put(record, unit, made, per);
    }
  }
}

// The sum of this rank's part, to everybody, and in `out`.
__device__ __forceinline__ void add_up(const Sum& s) {
  constexpr u32 ahead = RANKS < 2 ? RANKS : 2;  // ranks whose bytes are on their way
  const u64 here = s.mine[s.rank].local;
  for (u64 unit = s.warp; unit < s.units; unit += ALL_WARPS) {
    Vec own[LANE_VECS], packed;
    load_lane(s, s.first_of(s.rank, unit), own);
    float total[LANE];
#pragma unroll
    for (u32 first = 0; first < RANKS; first += ahead) {
      Vec came[ahead];
      float per[ahead];
#pragma unroll
      for (u32 j = 0; j < ahead; ++j) {
        if (first + j >= RANKS || first + j == s.rank) continue;
        const u64 record = s.record(here, 0, first + j);
        came[j] = load_relaxed(s.bytes(record, unit));
        per[j] = as_float(load_relaxed_word(s.scale(record, unit)));
      }
#pragma unroll
      for (u32 j = 0; j < ahead; ++j) {
        if (first + j >= RANKS) continue;
        if (first + j == s.rank) {
          per[j] = pack_elements(own, packed);
          came[j] = packed;
        }
        float value[LANE];
        unpack_lane(came[j], per[j], value);
#pragma unroll
        for (u32 e = 0; e < LANE; ++e) {
          total[e] = first + j == 0 ? value[e] : total[e] + value[e];
        }
      }
    }
    if constexpr (DIVIDE) {
#pragma unroll
      for (u32 e = 0; e < LANE; ++e) total[e] /= static_cast<float>(RANKS);
    }
    Vec made;
    const float per = pack_lane(total, made);
    for (u32 i = 1; i < RANKS; ++i) {
      s.put(s.record(s.mine[(s.rank + i) % RANKS].remote, 1, s.rank), unit, made, per);
    }
    unpack_lane(made, per, total);
    store_lane(s, s.first_of(s.rank, unit), total);
  }
}

// The others' sums, in `out`.
__device__ __forceinline__ void take(const Sum& s) {
  const u64 here = s.mine[s.rank].local;
  for (u32 i = 1; i < RANKS; ++i) {
    const u32 q = (s.rank + i) % RANKS;
    const u64 record = s.record(here, 1, q);
    Vec next{};
    float per = 0;
    const auto load = [&](u64 unit) {
      next = load_relaxed(s.bytes(record, unit));
      per = as_float(load_relaxed_word(s.scale(record, unit)));
    };
    if (s.warp < s.units) load(s.warp);
    for (u64 unit = s.warp; unit < s.units; unit += ALL_WARPS) {
      float value[LANE];
      unpack_lane(next, per, value);
      if (unit + ALL_WARPS < s.units) load(unit + ALL_WARPS);
      store_lane(s, s.first_of(q, unit), value);
    }
  }
}

}  // namespace stretto

extern "C" __global__ void __launch_bounds__(stretto::THREADS)
    stretto_quantised_sum(const stretto::SumCall call) {
  using namespace stretto;
  const Sum s(call);
  Bell bell(s);
  bell.tell();
  give(s);
  if (!bell.meet(FIRST)) return;
  add_up(s);
  if (!bell.meet(2)) return;
  take(s);
  bell.keep();
  __syncthreads();
  if (threadIdx.x == 0) s.mine[s.rank].end_call();
}
