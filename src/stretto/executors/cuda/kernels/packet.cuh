// packet.cuh -- data that announce themselves, at no cost in bytes: sentinel words.
//
// Packet memory is 0 where nothing has arrived. A word is sent as its exclusive-or with
// KEY, so that only a word equal to KEY looks like nothing. The receiver polls its own
// memory until all four words are there, each tested by itself: words may arrive in any
// order, and nothing but whole 32-bit words is relied on. It then writes zeros back, so
// that between launches all packet memory is 0, whatever plan runs next. A slot is
// written again two epochs later, when its owner has left this one.
//
// Escape. A word equal to KEY is legal data. Its sender says so beside the data: after
// all its stores of that call, a release store of (epoch, call) to the escape word of the
// same thread on the receiver. A receiver that has polled in vain for a while acquires
// that word; when it names this call or a later one, what was sent has arrived, whatever
// it looks like. So packets carry every bit pattern, of every type.
//
// Order: relaxed stores and polls; a packet orders nothing but itself.
#pragma once

#include "deadline.cuh"
#include "tile.cuh"

namespace stretto {

constexpr u32 KEY = 0x7fb52c91u;
constexpr u32 ESCAPE_PATIENCE = 64;

__device__ __forceinline__ Vec keyed(Vec v) {
  return {v.x ^ KEY, v.y ^ KEY, v.z ^ KEY, v.w ^ KEY};
}
// 0 when a word is: what has not arrived, or could be taken for it.
__device__ __forceinline__ u32 least_word(Vec v) {
  return smaller(smaller(v.x, v.y), smaller(v.z, v.w));
}

// A unit of a peer's packet memory, to be written; `base` is in its first half.
template <int PEER, int CALL>
struct PacketTo {
  u64 base;
  static constexpr bool finished = false, worded = false;

  __device__ bool aligned() const { return true; }
  __device__ void shift(const Slice&) {}
  // Returns 0 when a receiver could take this for nothing.
  template <class Lane>
  __device__ u32 put(Lane& lane, u32 cell, Vec v) const {
    const Vec sealed = keyed(v);
    store_relaxed(reinterpret_cast<Vec*>(base + lane.packet_half()) + cell, sealed);
    return least_word(sealed);
  }
  template <class Lane>
  __device__ void close(Lane& lane, bool escape) const {
    if (escape) store_release(lane.escape_to(PEER), lane.epoch << 20 | (CALL + 1));
  }
};

// A unit of our own packet memory, written by call CALL of FROM's lane.
// KEPT: it will be read again in this epoch, so it is not cleared yet.
template <int FROM, int FROM_LANE, int CALL, bool KEPT>
struct PacketFrom {
  u64 base;

  static constexpr bool polled = true, worded = false;
  static constexpr int peer = FROM;

  __device__ bool aligned() const { return true; }
  __device__ void shift(const Slice&) {}
  __device__ Vec peek(u32 cell) const {
    return load_relaxed(reinterpret_cast<const Vec*>(base) + cell);
  }
  __device__ u32 seen(Vec v) const { return least_word(v); }
  __device__ Vec opened(Vec v) const { return keyed(v); }
  __device__ void done(u32 cell) const {
    if (!KEPT) store_relaxed(reinterpret_cast<Vec*>(base) + cell, {0, 0, 0, 0});
  }
  template <class Lane>
  __device__ bool escaped(const Lane& lane) const {
    const u64 said = load_acquire(lane.escape_from(FROM, FROM_LANE));
    return said >= (lane.epoch << 20 | (CALL + 1));
  }
};

}  // namespace stretto
