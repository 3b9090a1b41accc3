// channel.cuh -- the layer under our kernels, for kernels of your own.
//
// A channel joins this rank and one peer: a buffer on each side, and two words that count
// signals. Counters live in device memory, so a captured kernel may be replayed for ever.
// Every wait ends at the session's deadline, with a record of who was missing, and
// returns false: leave then; nothing traps.
//
//   put, get        the calling threads copy together, in 16-byte vectors where both ends
//                   are aligned; relaxed, complete for the peer after a signal
//   signal          ONE thread, after __syncthreads(): all the block did before is
//                   visible to who waits (release)
//   wait            ONE thread; then __syncthreads(), and the block sees it all (acquire)
//   put_packet      8 bytes and their flag in one 16-byte store: no signal is needed. The
//   read_packet     flag must differ from what was there before (count calls)
//
// One block uses a channel at a time: signals are counted, not named.
#pragma once

#include "deadline.cuh"

namespace stretto {

struct MemoryChannel {
  u64 local;    // this rank's buffer
  u64 remote;   // the peer's buffer, mapped here
  u64 inbox;    // the word that the peer counts up, in our memory
  u64 outbox;   // the word that we count up, in the peer's memory
  u64 counts;   // ours alone: signals sent, signals seen
  u64 control;  // our control memory: the broken word
  u64 record;   // host memory
  u64 deadline_ns;
  int rank, peer;

  // Copy from our buffer to the peer's: thread `thread` of `threads`.
  __device__ void put(u64 to, u64 from, u64 nbytes, u32 thread, u32 threads) const {
    copy(remote + to, local + from, nbytes, thread, threads);
  }
  // Copy from the peer's buffer to ours.
  __device__ void get(u64 to, u64 from, u64 nbytes, u32 thread, u32 threads) const {
    copy(local + to, remote + from, nbytes, thread, threads);
  }

  __device__ void signal() const {
    u64* sent = reinterpret_cast<u64*>(counts);
    const u64 n = *sent + 1;
    *sent = n;
    store_release(reinterpret_cast<u64*>(outbox), n);
  }
  __device__ bool wait() const {
    u64* seen = reinterpret_cast<u64*>(counts) + 1;
    const u64 want = *seen + 1;
    const u64* word = reinterpret_cast<const u64*>(inbox);
    Watchful spin;
    u64 got = load_relaxed_word(word);
    while (got < want) {
      if (!spin.holds(*this)) return give_up(got, want);
      got = load_relaxed_word(word);
    }
    fence();
    *seen = want;
    return true;
  }

  // Packet `index` of the peer's buffer that begins at byte `at`.
  __device__ void put_packet(u64 at, u64 index, u64 value, u32 flag) const {
    store_relaxed(reinterpret_cast<Vec*>(remote + at) + index,
                  {static_cast<u32>(value), flag, static_cast<u32>(value >> 32), flag});
  }
  // Wait for packet `index` of our buffer; false: the deadline passed.
  __device__ bool read_packet(u64 at, u64 index, u32 flag, u64& value) const {
    const Vec* packet = reinterpret_cast<const Vec*>(local + at) + index;
    Watchful spin;
    Vec v = load_relaxed(packet);
    while (v.y != flag || v.w != flag) {
      if (!spin.holds(*this)) return give_up(v.y, flag);
      v = load_relaxed(packet);
    }
    value = v.x | static_cast<u64>(v.z) << 32;
    return true;
  }

 private:
  struct Watchful {
    u32 polls = 0;
    u64 since = 0;
    __device__ bool holds(const MemoryChannel& c) {
      if (++polls % PATIENCE != 0) return true;
      if (load_relaxed_word(control_word(c.control, BROKEN)) != 0) return false;
      const u64 now = clock_ns();
      if (since == 0) since = now;
      return now - since < c.deadline_ns;
    }
  };

  __device__ static void copy(u64 to, u64 from, u64 nbytes, u32 thread, u32 threads) {
    u64 whole = (to | from) % 16 == 0 ? nbytes / 16 : 0;
    for (u64 i = thread; i < whole; i += threads) {
      store_relaxed(reinterpret_cast<Vec*>(to) + i,
                    load_relaxed(reinterpret_cast<const Vec*>(from) + i));
    }
    for (u64 i = whole * 16 + thread; i < nbytes; i += threads) {
      store_relaxed_word(reinterpret_cast<u8*>(to + i),
                         load_relaxed_word(reinterpret_cast<const u8*>(from + i)));
    }
  }

  __device__ __noinline__ bool give_up(u64 got, u64 want) const {
    const u64 claim = broken_value(TIMEOUT, rank, peer, 0);
    atomicCAS(control_word(control, BROKEN), 0ull, claim);
    if (atomicCAS(control_word(control, BROKEN, 1), 0ull, 1ull) != 0) return false;
    Record* said = reinterpret_cast<Record*>(record);
    store_relaxed_word(&said->state, 1);
    said->kind = TIMEOUT;
    said->rank = rank;
    said->block = static_cast<int>(blockIdx.x);
    said->lane = 0;
    said->thread = static_cast<int>(threadIdx.x);
    said->step = 0;
    said->peer = peer;
    said->absent = said->differ = said->fingerprint = 0;
    said->epoch = said->launch = 0;
    said->got = got;
    said->want = want;
    fence();
    store_relaxed_word(&said->state, 2);
    return false;
  }
};
static_assert(sizeof(MemoryChannel) == 72, "channels.py: CHANNEL");

}  // namespace stretto
