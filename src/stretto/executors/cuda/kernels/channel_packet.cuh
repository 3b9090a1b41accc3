// channel_packet.cuh -- 8 bytes of data in 16, each half with the flag beside it.
//
// A packet is two 64-bit words, (data, flag) each: PTX promises that a word arrives whole,
// so whoever sees the flag in a word has its data. The two words may arrive in any order,
// and are tested apart. Packets are never cleared: the flag must be one that this place has
// not held. Two places in turn, by epoch, suffice where every rank waits for every other
// in every call: whoever starts call e + 2 knows that all have left call e.
#pragma once

#include "channel.cuh"

namespace stretto {

// Packet `index` of the peer's buffer that begins at byte `at`, a multiple of 16.
__device__ inline void MemoryChannel::put_packet(u64 at, u64 index, u64 value,
                                                 u32 flag) const {
  const u64 mark = static_cast<u64>(flag) << 32;
  store_pair(reinterpret_cast<Pair*>(remote + at) + index,
             {(value & 0xffffffffu) | mark, value >> 32 | mark});
}

// Wait for packet `index` of our buffer; false: the deadline passed.
__device__ inline bool MemoryChannel::read_packet(u64 at, u64 index, u32 flag, u64& value,
                                                  int step) const {
  const Pair* packet = reinterpret_cast<const Pair*>(local + at) + index;
  Patience patience;
  Pair v = load_pair(packet);
  while (v.low >> 32 != flag || v.high >> 32 != flag) {
    if (!patience.holds(*home, rank)) {
      const u64 got = v.low >> 32 != flag ? v.low >> 32 : v.high >> 32;
      return channel_gave_up(*home, rank, peer, A_PACKET, step, got, flag);
    }
    v = load_pair(packet);
  }
  value = (v.low & 0xffffffffu) | v.high << 32;
  return true;
}

}  // namespace stretto
