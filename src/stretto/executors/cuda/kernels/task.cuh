// task.cuh -- what a registered kernel is called with: arrays, peers, and an epoch.
//
// A task is one block of one call on one rank. Its frame keeps the same books as our own
// kernels: one epoch a launch, the roll call that finds ranks which call something else,
// deadlines, the record. So such a kernel may be captured, replayed for ever, and mixed
// with every other collective.
//
// Rules. The input is not written, except where it is the output too (calls in place):
// read an element before you store it, in one thread. What peers touch is scratch, and in
// zero-copy calls everybody's arrays, by the accesses of memory.cuh. Scratch may hold
// anything at the start; its half of this epoch is free on every rank when the call
// begins. Once a wait has failed every later one returns false at once and nothing is
// signalled: go on to the end, the host raises what the record says.
//
//   load_cell, store_cell
//             16 bytes of an array of `count` elements, cell by cell, whatever its
//             alignment; beyond its end zeros are read and nothing is stored
//   signal    ONE thread, after __syncthreads(): n-th signal of this call to a peer's
//             block of the same number, n from 1 and growing (release)
//   wait      ONE thread: until the peer's n-th signal (acquire); then __syncthreads()
//   meet      ALL threads: signal n to every peer, wait for theirs; a barrier on both ends
//   put_packet, read_packet
//             16 bytes that announce themselves, any bits. Packet `cell` of call `call` is
//             sent and read by the threads of the same number; `call` counts from 0 what a
//             thread sends to that peer; every packet that is sent is read, once
#pragma once

#include "clerk.cuh"
#include "packet.cuh"
#include "reduce.cuh"
#include "stream.cuh"
#include "vector.cuh"
#include "waiting.cuh"

namespace stretto {

// Whether no word of a packet looks like nothing.
__device__ __forceinline__ bool arrived(Vec v) {
  return v.x != 0 && v.y != 0 && v.z != 0 && v.w != 0;
}

template <class Config>
struct Task {
  using Element = typename Config::Element;    // element.cuh
  using Operator = typename Config::Operator;  // reduce.cuh
  static constexpr int rank = Config::rank, ranks = Config::ranks;
  static constexpr u32 blocks = Config::blocks, threads = Config::threads;
  static constexpr bool zero_copy = Config::zero_copy;

  const Params& p;
  u64 epoch;
  u32 block, thread;
  bool ok = true;

  __device__ Task(const Params& params, u32 block_, u64 epoch_)
      : p(params), epoch(epoch_), block(block_), thread(threadIdx.x) {}

  // --- where things are: addresses, on this rank; `count` is the elements of a part
  __device__ u64 count() const { return p.tile; }
  __device__ u64 input() const { return p.input[rank]; }
  __device__ u64 output() const { return p.output[rank]; }
  __device__ u64 scratch() const { return scratch_of(rank); }
  __device__ u64 scratch_of(int peer) const {
    return p.stage[peer] + (epoch & 1 ? p.stage_half : 0);
  }
  __device__ u64 input_of(int peer) const {
    static_assert(zero_copy, "peers' arrays are reached in zero_copy calls alone");
    return p.input[peer];
  }
  __device__ u64 output_of(int peer) const {
    static_assert(zero_copy, "peers' arrays are reached in zero_copy calls alone");
    return p.output[peer];
  }

  // --- this rank's own arrays, by cells of 16 bytes
  __device__ u64 cells() const { return (count() * Element::size + 15) / 16; }
  __device__ Vec load_cell(u64 array, u64 cell) const {
    const u64 left = count() * Element::size - cell * 16;
    if (array % 16 == 0 && left >= 16) {
      return load_plain(reinterpret_cast<const Vec*>(array) + cell);
    }
    const u32 nbytes = left < 16 ? static_cast<u32>(left) : 16;
    return load_words<Element::grain, false>(array + cell * 16, nbytes);
  }
  __device__ void store_cell(u64 array, u64 cell, Vec v) const {
    const u64 left = count() * Element::size - cell * 16;
    if (array % 16 == 0 && left >= 16) {
      return store_plain(reinterpret_cast<Vec*>(array) + cell, v);
    }
    const u32 nbytes = left < 16 ? static_cast<u32>(left) : 16;
    store_words<Element::grain, false>(array + cell * 16, v, nbytes);
  }

  // --- order
  __device__ void signal(int peer, u32 n) {
    if (ok) store_release(flag_word(p.control[peer], block, 0, rank, 0), value(n));
  }
  __device__ bool wait(int peer, u32 n) {
    const u64* word = flag_word(p.control[rank], block, 0, peer, 0);
    ok = ok && await_word(p, rank, peer, A_SIGNAL, n, word, value(n));
    fence();
    return ok;
  }
  __device__ bool meet(u32 n) {
    __syncthreads();
    if (thread < ranks && thread != rank) {
      signal(static_cast<int>(thread), n);
      wait(static_cast<int>(thread), n);
    }
    return agree();
  }
  // A barrier of the block that leaves `ok` the same for all its threads.
  __device__ bool agree() {
    ok = __syncthreads_and(ok);
    return ok;
  }

  // --- packets: `at` is a multiple of 16 in everybody's packet memory
  __device__ void put_packet(int peer, u64 at, u32 cell, u32 call, Vec v) {
    const u64 base = p.packets[peer] + (epoch & 1 ? p.packet_half : 0) + at;
    const Vec sealed = keyed(v);
    store_relaxed(reinterpret_cast<Vec*>(base) + cell, sealed);
    if (!arrived(sealed)) store_release(escape(peer, rank), value(call + 1));
  }
  __device__ bool read_packet(int peer, u64 at, u32 cell, u32 call, Vec& v) {
    const u64 base = p.packets[rank] + (epoch & 1 ? p.packet_half : 0) + at;
    Vec* packet = reinterpret_cast<Vec*>(base) + cell;
    Patience patience;
    u32 polls = 0;
    v = load_relaxed(packet);
    while (ok && !arrived(v)) {
      if (++polls % ESCAPE_PATIENCE == 0 &&
          load_acquire(escape(rank, peer)) >= value(call + 1)) {
        v = load_relaxed(packet);
        break;
      }
      if (!patience.holds(p, rank)) {
        ok = channel_gave_up(p, rank, peer, A_PACKET, static_cast<int>(call), 0,
                             value(call + 1));
      }
      v = load_relaxed(packet);
    }
    store_relaxed(packet, {0, 0, 0, 0});
    v = keyed(v);
    return ok;
  }

 private:
  __device__ u64 value(u32 n) const { return epoch << 20 | n; }
  __device__ u64* escape(int owner, int from) const {
    const u32 flat = block * threads + thread;
    return control_word(p.control[owner], ESCAPED,
                        static_cast<u64>(from) * ESCAPES + flat);
  }
};

// Run one block of a call, with its books.
template <class Config, class Body>
__device__ __forceinline__ void run_task(const Params& p, u32 block, Body body) {
  after_earlier_work();
  u64* epochs = control_word(p.control[Config::rank], EPOCHS);
  const u64 epoch = load_relaxed_word(epochs + block);
  const bool clerk = block == 0 && threadIdx.x < CLERK;
  u64 launch = 0;
  if (clerk) launch = tell_peers<Config>(p, threadIdx.x);
  Task<Config> task(p, block, epoch);
  body(task);
  __syncthreads();  // all have read their epoch
  for (u32 w = block + threadIdx.x * Config::blocks; w < MAX_WORKERS;
       w += Config::threads * Config::blocks) {
    store_relaxed_word(epochs + w, epoch + 1);
  }
  if (clerk) hear_peers<Config>(p, threadIdx.x, launch, epoch);
}

}  // namespace stretto
