// clerk.cuh -- the books of a launch, kept by a warp of their own beside the data.
//
// Roll call: the clerk of the first worker tells every peer (launch, fingerprint) in one
// relaxed 64-bit word, and waits for theirs. Whoever called something else is found at
// once, whoever does not come is named at the deadline; nobody's data wait for this. Two
// slots, by parity of the launch: a peer cannot enter launch L + 2 before we left L,
// because every plan is closed (each rank's entry is before every rank's exit).
//
// Epochs: each worker reads its own epoch word. Once all its threads have (they sign off
// at a barrier where they do not wait, when their first data are on the way), the clerk
// writes the next launch's epoch. Those of workers that this launch does not have it
// writes at once. So nothing of this is left to do when the last data arrive.
#pragma once

#include "ring.cuh"
#include "stream.cuh"

namespace stretto {

// Every data thread, once, when it has read its epoch word.
template <u32 THREADS>
__device__ __forceinline__ void sign_off() {
  asm volatile("barrier.cta.arrive 2, %0;" ::"n"(THREADS + CLERK) : "memory");
}

// Tell the peers who entered, with what. Returns the number of this launch.
template <class C>
__device__ __forceinline__ u64 tell_peers(const Params& p, u32 lane) {
  u64* launches = control_word(p.control[C::rank], LAUNCHES);
  const u64 launch = load_relaxed_word(launches) + 1;
  __syncwarp();
  if (lane == C::rank) store_relaxed_word(launches, launch);
  if (lane < C::ranks && lane != C::rank) {
    const u64 slot = (launch & 1) * MAX_RANKS + C::rank;
    const u64 said = launch << 32 | p.fingerprint;
    if (is_far<C>(lane)) {
      ask_host(p, C::rank, {lane, 0, 0, ROLL + 8 * slot, said});
    } else {
      store_relaxed_word(control_word(p.control[lane], ROLL, slot), said);
    }
  }
  return launch;
}

// Wait for the peers' word, and compare.
template <class C>
__device__ __forceinline__ void hear_peers(const Params& p, u32 lane, u64 launch,
                                           u64 epoch) {
  if (lane >= C::ranks || lane == C::rank) return;
  const u64 slot = (launch & 1) * MAX_RANKS + lane;
  const u64 ours = is_far<C>(lane) ? p.far : p.control[C::rank];
  const u64* word = control_word(ours, ROLL, slot);
  const u64 want = launch << 32 | p.fingerprint;
  const Place at{C::rank, 0, 0, static_cast<int>(threadIdx.x), epoch};
  const int peer = static_cast<int>(lane);
  Patience patience;
  while (true) {
    const u64 got = load_relaxed_word(word);
    if (got >> 32 == want >> 32) {
      if (got != want) give_up<C::ranks>(p, at, MISMATCH, -1, peer, got, want);
      return;
    }
    if (!patience.holds(p, C::rank)) {
      return give_up<C::ranks>(p, at, TIMEOUT, -1, peer, got, want);
    }
  }
}

template <class C>
__device__ __forceinline__ void keep_books(const Params& p, u32 worker) {
  after_earlier_work();
  constexpr u32 workers = C::blocks * C::lanes;
  const u32 lane = threadIdx.x - C::threads;
  u64* epochs = control_word(p.control[C::rank], EPOCHS);
  const u64 epoch = load_relaxed_word(epochs + worker);
  u64 launch = 0;
  if (worker == 0) launch = tell_peers<C>(p, lane);
#pragma unroll 1
  for (u32 w = worker + (lane + 1) * workers; w < MAX_WORKERS; w += CLERK * workers) {
    store_relaxed_word(epochs + w, epoch + p.tiles);
  }
  asm volatile("barrier.cta.sync 2, %0;" ::"n"(C::threads + CLERK) : "memory");
  if (lane == 0) store_relaxed_word(epochs + worker, epoch + p.tiles);
  if (worker == 0) hear_peers<C>(p, lane, launch, epoch);
}

}  // namespace stretto
