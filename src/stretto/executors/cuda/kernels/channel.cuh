// channel.cuh -- the layer under our kernels, for kernels of your own: memory channels.
//
// A channel joins a block of this rank and the block of the same number of one peer: a
// buffer on each side, and a word on each side that counts signals. Counters live in
// device memory, so a captured kernel may be replayed for ever. Every wait ends at the
// session's deadline, with a record of who was missing, and returns false: leave then;
// nothing traps, and the host raises what the record says.
//
//   put, get       the calling threads copy together; relaxed, complete for the peer only
//                  after a signal. `thread` of `threads` share the work
//   signal         ONE thread, after __syncthreads(): all that the block did before is
//                  visible to who waits (release, system scope)
//   wait           ONE thread; then __syncthreads(), and the block sees it (acquire)
//   put_packet,    8 bytes with their flag in two 8-byte words: no signal is needed, and
//   read_packet    nothing else is ordered. The flag must differ from what was there:
//                  use epoch(), and two places in turn
//   add            into the peer's buffer, by its memory: no order among ranks; complete
//                  for the peer after a signal
//
// `step` is a number of yours that an error names. `channels` is a table: the channel of
// this block to rank q is channels[blockIdx.x * ranks + q]; that to yourself has
// addresses and an epoch, and no peer. One block uses a channel at a time.
#pragma once

#include "remote.cuh"
#include "waiting.cuh"

namespace stretto {

struct MemoryChannel : ChannelWords {
  __device__ void put(u64 to, u64 from, u64 nbytes, u32 thread, u32 threads) const;
  __device__ void get(u64 to, u64 from, u64 nbytes, u32 thread, u32 threads) const;
  template <class T>
  __device__ void add(u64 to, T value) const;
  template <class T>
  __device__ void add(u64 to, u64 from, u64 count, u32 thread, u32 threads) const;

  // --- data that announce themselves (channel_packet.cuh)
  __device__ void put_packet(u64 at, u64 index, u64 value, u32 flag) const;
  __device__ bool read_packet(u64 at, u64 index, u32 flag, u64& value,
                              int step = 0) const;

  // --- order
  __device__ void signal() const {
    u64* sent = reinterpret_cast<u64*>(counts);
    const u64 n = *sent + 1;
    *sent = n;
    store_release(reinterpret_cast<u64*>(outbox), n);
  }
  // Whether the next signal is there; takes nothing, orders nothing.
  __device__ bool poll() const {
    const u64 seen = reinterpret_cast<const u64*>(counts)[1];
    return load_relaxed_word(reinterpret_cast<const u64*>(inbox)) > seen;
  }
  __device__ bool wait(int step = 0) const {
    u64* seen = reinterpret_cast<u64*>(counts) + 1;
    const u64 want = *seen + 1;
    const u64* word = reinterpret_cast<const u64*>(inbox);
    if (!await_word(*home, rank, peer, A_SIGNAL, step, word, want)) return false;
    fence();
    *seen = want;
    return true;
  }

  // --- epochs: how many calls this block has ended, the same on every rank as long as
  // their calls are. For flags (never 0) and for which of two places is free.
  __device__ u64 epoch() const { return *reinterpret_cast<const u64*>(calls) + 1; }
  // ONE thread, after __syncthreads(), at the end of a call.
  __device__ void end_call() const { *reinterpret_cast<u64*>(calls) += 1; }
};
static_assert(sizeof(MemoryChannel) == sizeof(ChannelWords), "words alone");

}  // namespace stretto

#include "channel_copy.cuh"
#include "channel_packet.cuh"
