// packets.cuh -- what announces itself: words, and rows of few tokens.
//
// A packet is 8 bytes with a flag in each half (channel_packet.cuh), so no fence and no
// signal stands between a store and its use: twice the bytes, half the latency. A row of
// 16-byte vectors has its first halves first, so that a warp's stores lie side by side.
// Loads of several packets are under way together; then each is waited for.
#pragma once

#include "places.cuh"

namespace stretto {

// Where peers' memory of this epoch is, for all threads of a block.
struct Peers {
  u64 to[RANKS];
};

__device__ __forceinline__ void put(u64 to, u64 index, u64 value, u64 mark) {
  store_pair(reinterpret_cast<Pair*>(to) + index,
             {(value & 0xffffffffu) | mark, value >> 32 | mark});
}
// Vector `index` of a row of `vecs` that begins at packet `row`.
__device__ __forceinline__ void put_vec(u64 to, u64 row, u32 vecs, u32 index, const Vec& v,
                                        u64 mark) {
  put(to, row + index, v.x | static_cast<u64>(v.y) << 32, mark);
  put(to, row + vecs + index, v.z | static_cast<u64>(v.w) << 32, mark);
}

// What waits for packets of one peer, in memory of this rank at `at`; `here` is its address.
struct Inbox {
  const MemoryChannel& from;
  u64 here, at;
  u32 flag;

  __device__ __forceinline__ Pair look(u64 index) const {
    return load_pair(reinterpret_cast<const Pair*>(here) + index);
  }
  // The value of a packet that was looked at, and may not have been there yet.
  __device__ __forceinline__ u64 take(Pair seen, u64 index, bool& ok, int step) const {
    if (seen.low >> 32 == flag && seen.high >> 32 == flag) {
      return (seen.low & 0xffffffffu) | seen.high << 32;
    }
    u64 value = 0;
    ok = ok && from.read_packet(at, index, flag, value, step);
    return value;
  }
  // The same, and what its writer stored before.
  __device__ __forceinline__ u64 hear(u64 index, bool& ok, int step) const {
    const Pair* packet = reinterpret_cast<const Pair*>(here) + index;
    const Pair seen = load_pair_acquire(packet);
    const u64 value = take(seen, index, ok, step);
    if (seen.low >> 32 != flag || seen.high >> 32 != flag) load_pair_acquire(packet);
    return value;
  }
};

// The packets of one kind, of all peers.
struct Inboxes {
  const MemoryChannel* mine;
  u64 here, half;
  u32 flag;

  __device__ __forceinline__ Inbox of(u32 peer, u64 at) const {
    return {mine[peer], here + at, half + at, flag};
  }
};

// A vector under way: what was looked at.
struct Coming {
  Pair low, high;

  __device__ __forceinline__ void look(const Inbox& from, u64 row, u32 vecs, u32 index) {
    low = from.look(row + index), high = from.look(row + vecs + index);
  }
  __device__ __forceinline__ Vec take(const Inbox& from, u64 row, u32 vecs, u32 index,
                                      bool& ok) const {
    const u64 a = from.take(low, row + index, ok, 2);
    const u64 b = from.take(high, row + vecs + index, ok, 2);
    return {static_cast<u32>(a), static_cast<u32>(a >> 32), static_cast<u32>(b),
            static_cast<u32>(b >> 32)};
  }
};

}  // namespace stretto
