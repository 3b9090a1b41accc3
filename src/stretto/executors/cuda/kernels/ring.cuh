// ring.cuh -- ranks on other hosts: a kernel asks, a thread of the host sends.
//
// What goes to another host is written where that rank's staging is mirrored in pinned
// memory, and then asked for here: a request names a range of the mirror, a word of the
// rank's, or both, the word to be raised when the range has landed. The thread takes
// requests in order, and hands them to a carrier that keeps the order to each rank. It
// holds no state of a launch, so graphs replay.
//
// The store of `turn` releases what the asking thread has seen: after a barrier, what
// its whole block has written. Slots are taken again when the thread has taken what was
// in them; how far it is, is remembered on the device, so that host memory is seldom read.
#pragma once

#include "deadline.cuh"

namespace stretto {

// What is asked for.
struct Asked {
  u64 peer, at, nbytes, word, value;
};

template <class...>
using Always = void;

// Which ranks are on other hosts, as bits; a plan of one host does not say.
template <class C, class = void>
struct FarRanks {
  static constexpr u32 bits = 0;
};
template <class C>
struct FarRanks<C, Always<decltype(C::far)>> {
  static constexpr u32 bits = C::far;
};
template <class C>
__device__ __forceinline__ bool is_far(u32 rank) {
  return FarRanks<C>::bits != 0 && (FarRanks<C>::bits >> rank & 1) != 0;
}

// One thread asks; false: the thread of the host has stopped, or the rank gave up.
__device__ __forceinline__ bool ask_host(const Params& p, int rank, Asked asked) {
  u64* numbers = control_word(p.control[rank], REQUESTS);
  const u64 turn = take_number(numbers) + 1;
  u64* known = numbers + 1;  // how many had been taken
  if (turn > HOST_SLOTS && load_relaxed_word(known) < turn - HOST_SLOTS) {
    const u64* taken = reinterpret_cast<const u64*>(p.ring);
    Patience patience;
    u64 got = load_relaxed_word(taken);
    while (got < turn - HOST_SLOTS) {
      if (!patience.holds(p, rank)) return false;
      got = load_relaxed_word(taken);
    }
    store_relaxed_word(known, got);
  }
  HostRequest* slot =
      reinterpret_cast<HostRequest*>(p.ring + HOST_RING_BEGIN) + (turn - 1) % HOST_SLOTS;
  store_relaxed_word(&slot->peer, asked.peer);
  store_relaxed_word(&slot->at, asked.at);
  store_relaxed_word(&slot->nbytes, asked.nbytes);
  store_relaxed_word(&slot->word, asked.word);
  store_relaxed_word(&slot->value, asked.value);
  store_release(&slot->turn, turn);
  return true;
}

}  // namespace stretto
