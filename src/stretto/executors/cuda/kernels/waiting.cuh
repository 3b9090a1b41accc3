// waiting.cuh -- how channels wait: as our own kernels do, to a deadline, saying for whom.
//
// `Home` is what all channels of a rank share. It has the form of a kernel's parameters, of
// which it uses the control memory of every rank, the record, the deadline and what calls
// are named by: a registered kernel's fingerprint, or that of the channels, which a kernel
// may replace by that of its call. Whoever gives up claims its rank's broken word, writes
// the record, and breaks the peers' words: everybody leaves, nothing traps.
// A choice that is no expert breaks no peer's word: it came to every rank in a packet, and
// each says itself what it was. Who breaks a word of its own rank's writes the record.
#pragma once

#include "deadline.cuh"

namespace stretto {

using Home = Params;

__device__ __noinline__ bool channel_gave_up(const Home& home, int rank, int peer,
                                             Awaited what, int step, u64 got, u64 want,
                                             u32 name = 0) {
  const u64 mine = home.control[rank];
  const bool known = home.tiles != 0;  // a call of ours: it called the roll
  const u64 launch = known ? load_relaxed_word(control_word(mine, LAUNCHES)) : 0;
  u32 members = 0;
  for (u32 q = 0; q < MAX_RANKS; ++q) members |= (home.control[q] != 0) << q;
  const u64 roll = known ? read_roll<MAX_RANKS>(home, rank, launch) : 0;
  const u32 absent = static_cast<u32>(roll) & members;
  const u32 other = what == A_CALL ? 1u << peer : 0;
  const u32 differ = (static_cast<u32>(roll >> 32) | other) & members;
  const bool refused = what == A_CHOICE;  // everybody hears it from whom it is of
  const Kind kind = refused ? COUNTS : differ != 0 ? MISMATCH : TIMEOUT;
  const u64 claim = broken_value(kind, rank, peer, absent);
  const u64 found = atomicCAS(control_word(mine, BROKEN), 0ull, claim);
  const int teller = teller_of(found);
  if (found != 0 && teller == rank) return false;  // another thread's: it says why
  if (atomicCAS(control_word(mine, BROKEN, 1), 0ull, 1ull) != 0) return false;
  const bool told = !refused && found != 0;
  Record* record = reinterpret_cast<Record*>(home.record);
  store_relaxed_word(&record->state, 1);
  store_relaxed_word(&record->kind, told ? TOLD : kind);
  record->rank = rank;
  record->block = static_cast<int>(blockIdx.x);
  record->lane = 0;
  record->thread = static_cast<int>(threadIdx.x);
  record->step = step;
  record->peer = told ? teller : peer;
  record->absent = told ? static_cast<u32>(found) : absent;
  record->differ = differ;
  record->fingerprint = name != 0 ? name : home.fingerprint;
  record->channel = what;
  record->epoch = known ? want >> 20 : 0;  // task.cuh: what a call of ours waits for
  record->got = told ? found : got;
  record->want = want;
  record->launch = launch;
  fence();
  store_relaxed_word(&record->state, 2);
  for (u32 q = 0; q < MAX_RANKS && !told && !refused; ++q) {
    if (q != static_cast<u32>(rank) && home.control[q] != 0) {
      store_relaxed_word(control_word(home.control[q], BROKEN), claim);
    }
  }
  return false;
}

// Poll `word` until it is `want` or more; false: gave up. Orders nothing.
__device__ __forceinline__ bool await_word(const Home& home, int rank, int peer,
                                           Awaited what, int step, const u64* word,
                                           u64 want, u32 name = 0) {
  Patience patience;
  u64 got = load_relaxed_word(word);
  while (got < want) {
    if (!patience.holds(home, rank)) {
      return channel_gave_up(home, rank, peer, what, step, got, want, name);
    }
    got = load_relaxed_word(word);
  }
  return true;
}

}  // namespace stretto
