// channel_copy.cuh -- put, get and add: many threads copy, nothing is announced.
//
// Whole 16-byte vectors where both ends are aligned to them, bytes otherwise. Every access
// is relaxed and of system scope; a signal after a barrier makes them visible.
#pragma once

#include "channel.cuh"

namespace stretto {

// Thread `thread` of `threads` copies its part.
__device__ inline void copy_shared(u64 to, u64 from, u64 nbytes, u32 thread,
                                   u32 threads) {
  const u64 whole = (to | from) % 16 == 0 ? nbytes / 16 : 0;
  for (u64 i = thread; i < whole; i += threads) {
    store_relaxed(reinterpret_cast<Vec*>(to) + i,
                  load_relaxed(reinterpret_cast<const Vec*>(from) + i));
  }
  for (u64 i = whole * 16 + thread; i < nbytes; i += threads) {
    store_relaxed_word(reinterpret_cast<u8*>(to + i),
                       load_relaxed_word(reinterpret_cast<const u8*>(from + i)));
  }
}

// From our buffer to the peer's.
__device__ inline void MemoryChannel::put(u64 to, u64 from, u64 nbytes, u32 thread,
                                          u32 threads) const {
  copy_shared(remote + to, local + from, nbytes, thread, threads);
}

// From the peer's buffer to ours.
__device__ inline void MemoryChannel::get(u64 to, u64 from, u64 nbytes, u32 thread,
                                          u32 threads) const {
  copy_shared(local + to, remote + from, nbytes, thread, threads);
}

// One value into the peer's buffer, at byte `to`: u32, u64, float, double, Float16x2 or
// (from sm_90) BFloat16x2.
template <class T>
__device__ inline void MemoryChannel::add(u64 to, T value) const {
  add_remote(reinterpret_cast<T*>(remote + to), value);
}

// `count` values of our buffer, likewise.
template <class T>
__device__ inline void MemoryChannel::add(u64 to, u64 from, u64 count, u32 thread,
                                          u32 threads) const {
  const T* source = reinterpret_cast<const T*>(local + from);
  T* target = reinterpret_cast<T*>(remote + to);
  for (u64 i = thread; i < count; i += threads) add_remote(target + i, source[i]);
}

}  // namespace stretto
