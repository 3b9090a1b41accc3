// engine_channel.cuh -- a kernel asks, and a copy engine moves: no SM carries the bytes.
//
// Requests go to a ring in host memory. A thread of the session's process reads them, in
// order, and enqueues copies and flag writes on a stream for each peer. So requests to one
// peer are done in their order, and those to different peers side by side.
//
//   put       ask for a copy from our buffer to the peer's. What is to be copied must be
//             written by the asking thread, or by its block before __syncthreads()
//   signal    ask to tell the peer, after every put asked for before (to that peer)
//   wait      for the peer's signal: what it put before is here (acquire)
//   flush     wait until what we put to that peer has been copied: our buffer may be
//             written again. Says nothing about what the peer has seen
//
// All four are called by ONE thread, and return false when the deadline passed or the
// proxy has failed (the host raises why). The buffers are those of channel.cuh.
#pragma once

#include "remote.cuh"
#include "waiting.cuh"

namespace stretto {

constexpr u64 RING_SLOTS = 256;
constexpr u64 RING_BEGIN = 64;  // bytes; the first word counts what was taken

struct Request {
  u64 turn;  // its number, from 1: written last
  u64 what;  // kind, peer << 8, block << 16
  u64 to, from, amount;
  u64 padding[3];
};
static_assert(sizeof(Request) == 64, "proxy.py: REQUEST");

enum Wish : u64 { PUT = 1, SIGNAL = 2, FLUSH = 3 };

struct EngineChannel {
  u64 inbox;    // the word that the peer's stream writes, in our memory
  u64 counts;   // ours alone: signals sent, signals seen, flushes asked for
  u64 flushed;  // the word that our stream writes, in our memory
  u64 numbers;  // the next request's number, shared by all blocks of this rank
  u64 ring;     // host memory
  const Home* home;
  int rank, peer;
  int block, zero;

  __device__ bool put(u64 to, u64 from, u64 nbytes, int step = 0) const {
    return ask(PUT, to, from, nbytes, step);
  }
  __device__ bool signal(int step = 0) const {
    return ask(SIGNAL, 0, 0, ++count(0), step);
  }
  __device__ bool wait(int step = 0) const {
    const u64 want = count(1) + 1;
    const u64* word = reinterpret_cast<const u64*>(inbox);
    if (!await_word(*home, rank, peer, AN_ENGINE_SIGNAL, step, word, want)) return false;
    fence();
    count(1) = want;
    return true;
  }
  __device__ bool flush(int step = 0) const {
    const u64 want = ++count(2);
    if (!ask(FLUSH, 0, 0, want, step)) return false;
    const u64* word = reinterpret_cast<const u64*>(flushed);
    if (!await_word(*home, rank, peer, A_FLUSH, step, word, want)) return false;
    fence();
    return true;
  }

 private:
  __device__ u64& count(u32 which) const { return reinterpret_cast<u64*>(counts)[which]; }

  __device__ bool ask(Wish what, u64 to, u64 from, u64 amount, int step) const {
    const u64 turn = take_number(reinterpret_cast<u64*>(numbers)) + 1;
    const u64* taken = reinterpret_cast<const u64*>(ring);
    if (turn > RING_SLOTS && !await_word(*home, rank, peer, A_RING, step, taken,
                                         turn - RING_SLOTS)) {
      return false;
    }
    Request* slot = reinterpret_cast<Request*>(ring + RING_BEGIN) + (turn - 1) % RING_SLOTS;
    store_relaxed_word(&slot->what, what | static_cast<u64>(peer) << 8 |
                                        static_cast<u64>(block) << 16);
    store_relaxed_word(&slot->to, to);
    store_relaxed_word(&slot->from, from);
    store_relaxed_word(&slot->amount, amount);
    fence();  // what is to be copied, too
    store_release(&slot->turn, turn);
    return true;
  }
};
static_assert(sizeof(EngineChannel) == 64, "channels.py: ENGINE");

}  // namespace stretto
