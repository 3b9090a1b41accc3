// packets.cuh -- few tokens: everything goes as packets, which announce themselves.
//
// A packet is 8 bytes with a flag in each half (channel_packet.cuh), so no fence and no
// signal stands between a row's store and its use: twice the bytes, half the latency. A
// row of 16-byte vectors has its first halves first, so that a warp's stores lie side by
// side. Loads of several packets are under way together; then each is waited for.
#pragma once

#include "places.cuh"

namespace stretto {

// Where memory of this epoch is, peers' and ours, for all threads of a block.
struct Peers {
  u64 to[RANKS], here;
};

__device__ __forceinline__ void find_peers(Peers& peers, const MemoryChannel* mine,
                                           u64 half) {
  if (threadIdx.x >= RANKS) return;
  peers.to[threadIdx.x] = mine[threadIdx.x].remote + half;
  if (threadIdx.x == 0) peers.here = mine[0].local + half;
}

__device__ __forceinline__ void put(u64 to, u64 index, u64 value, u64 mark) {
  store_pair(reinterpret_cast<Pair*>(to) + index,
             {(value & 0xffffffffu) | mark, value >> 32 | mark});
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

}  // namespace stretto
