// deadline.cuh -- no spin is for ever, and nobody gives up without saying for whom.
//
// A spin polls relaxed. Every `PATIENCE` polls it looks at its rank's broken word, and
// at the device's clock: the first look starts the time, a later one ends it. More seldom
// it looks into host memory, where the host says that a rank was lost: it writes there
// also while the driver takes nothing from it, as a queue is full of launches. The first
// thread to give up claims the broken word, writes the record in host
// memory, and tells the peers' broken words, so that everybody leaves without waiting
// for a deadline of their own. Nothing traps: whoever gives up skips what is left of the
// plan, barriers included in the count, and the context stays usable.
#pragma once

#include "abi.cuh"

namespace stretto {

constexpr u32 PATIENCE = 128;
constexpr u32 HOST_PATIENCE = 32 * PATIENCE;  // polls: a few milliseconds

// Where a thread is, for the record.
struct Place {
  int rank, block, lane, thread;
  u64 epoch;
};

// A broken word: bit 63, kind, who says so, whom it missed (8 bits, all ones: nobody),
// and the ranks that had not entered.
__device__ __forceinline__ u64 broken_value(Kind kind, int rank, int peer, u32 absent) {
  return 1ull << 63 | static_cast<u64>(kind) << 48 | static_cast<u64>(rank) << 40 |
         static_cast<u64>(peer & 0xff) << 32 | absent;
}

__device__ __forceinline__ int teller_of(u64 broken) {
  return static_cast<int>(broken >> 40 & 0xff);
}

// Which ranks have not entered launch `launch` (low half), and which did with another
// fingerprint (high half).
template <u32 RANKS>
__device__ __noinline__ u64 read_roll(const Params& p, int rank, u64 launch) {
  u64 found = 0;
  for (u32 q = 0; q < RANKS; ++q) {
    if (q == static_cast<u32>(rank)) continue;
    const u64 slot = (launch & 1) * MAX_RANKS + q;
    const u64 ours = p.control[q] == 0 ? p.far : p.control[rank];  // 0: on another host
    if (ours == 0) continue;
    const u64 said = load_relaxed_word(control_word(ours, ROLL, slot));
    if (static_cast<u32>(said >> 32) != static_cast<u32>(launch)) {
      found |= 1ull << q;
    } else if (static_cast<u32>(said) != p.fingerprint) {
      found |= 1ull << (32 + q);
    }
  }
  return found;
}

// Give up, once per rank: claim, record, tell.
template <u32 RANKS>
__device__ __noinline__ void give_up(const Params& p, Place at, Kind kind, int step,
                                     int peer, u64 got, u64 want) {
  const u64 mine = p.control[at.rank];
  const u64 launch = load_relaxed_word(control_word(mine, LAUNCHES));
  const bool counts = kind == COUNTS;  // before the roll is called, by all at once
  const u64 roll = counts ? 0 : read_roll<RANKS>(p, at.rank, launch);
  u32 absent = static_cast<u32>(roll), differ = static_cast<u32>(roll >> 32);
  const u64 claim = broken_value(kind, at.rank, peer, absent);
  const u64 found = atomicCAS(control_word(mine, BROKEN), 0ull, claim);
  if (found != 0 && teller_of(found) == at.rank) return;  // another thread's: it says why
  if (atomicCAS(control_word(mine, BROKEN, 1), 0ull, 1ull) != 0) return;
  const bool told = !counts && found != 0;
  Record* record = reinterpret_cast<Record*>(p.record);
  store_relaxed_word(&record->state, 1);
  if (told) kind = TOLD, peer = teller_of(found), got = found;
  if (told) absent = static_cast<u32>(found);
  store_relaxed_word(&record->kind, kind);
  record->rank = at.rank;
  record->block = at.block;
  record->lane = at.lane;
  record->thread = at.thread;
  record->step = step;
  record->peer = peer;
  record->absent = absent;
  record->differ = differ;
  record->fingerprint = p.fingerprint;
  record->epoch = at.epoch;
  record->got = got;
  record->want = want;
  record->launch = launch;
  fence();
  store_relaxed_word(&record->state, 2);
  for (u32 q = 0; q < RANKS && !told; ++q) {
    if (q != static_cast<u32>(at.rank) && p.control[q] != 0) {  // hosts tell hosts
      store_relaxed_word(control_word(p.control[q], BROKEN), claim);
    }
  }
}

// One spin's patience.
struct Patience {
  u32 polls = 0;
  u64 since = 0;

  // Whether to go on polling; false: give up.
  __device__ __forceinline__ bool holds(const Params& p, int rank) {
    if (++polls % PATIENCE != 0) return true;
    if (load_relaxed_word(control_word(p.control[rank], BROKEN)) != 0) return false;
    if (polls % HOST_PATIENCE == 0) {
      const Record* record = reinterpret_cast<const Record*>(p.record);
      if (load_relaxed_word(&record->leave) != 0) return false;
    }
    return within(p.deadline_ns);
  }
  // The same for what does not depend on peers: until so much time has passed.
  __device__ __forceinline__ bool lasts(u64 ns) {
    return ++polls % PATIENCE != 0 || within(ns);
  }

 private:
  __device__ __forceinline__ bool within(u64 ns) {
    const u64 now = clock_ns();
    if (since == 0) since = now;
    return now - since < ns;
  }
};

}  // namespace stretto
