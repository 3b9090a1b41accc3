// line.cuh -- data that announce themselves, 120 bytes at a time.
//
// A line is 128 bytes: 120 of data, then a 64-bit flag, epoch + 1. Eight threads write it
// with one store each, in one instruction of their warp, and eight read it likewise; the
// one that holds the flag tells the others what it saw. Lines lie at multiples of 128
// bytes in memory of their own, so flags only ever meet older flags, and nothing is
// cleared.
//
// Order: relies on the 128 bytes of one warp-wide store arriving together and of one
// warp-wide load being taken together. PTX promises neither. They hold over NVLink and in
// local memory, and not over PCIe: whoever picks schedules must not pick `lines` there.
// Both need the eight threads to run as one. Threads that took different branches may
// meet (`__syncwarp`) and go on apart, which has torn lines: the flag's thread alone had
// divided zeros, by a subroutine. So they look who is with them; where not all are, the
// flag is stored last and loaded first, with fences between.
#pragma once

#include "deadline.cuh"
#include "tile.cuh"

namespace stretto {

constexpr u32 LINE = 128, LINE_DATA = 120;

// A cell is a thread's part of a line: 16 bytes, the eighth thread's only 8. Eight
// neighbours share a line's fate, so whatever one decides they decide together.
struct Lines {
  static constexpr u32 alignment = 8;
  __device__ static u32 offset(u32 cell) { return cell / 8 * LINE_DATA + cell % 8 * 16; }
  __device__ static u32 bytes(u32 cell) { return cell % 8 == 7 ? 8 : 16; }
  __device__ static u32 whole_cells(u32 nbytes) { return nbytes / LINE_DATA * 8; }
  __device__ static u32 cells(u32 nbytes) {
    return (nbytes + LINE_DATA - 1) / LINE_DATA * 8;
  }
  template <bool SHARED>
  __device__ static Vec load(u64 address, u32 cell) {
    const u64* p = reinterpret_cast<const u64*>(address);
    const bool last = cell % 8 == 7;
    const u64 low = SHARED ? load_relaxed_word(p) : p[0];
    const u64 high = last ? 0 : SHARED ? load_relaxed_word(p + 1) : p[1];
    return {static_cast<u32>(low), static_cast<u32>(low >> 32),
            static_cast<u32>(high), static_cast<u32>(high >> 32)};
  }
  template <bool SHARED>
  __device__ static void store(u64 address, u32 cell, Vec v) {
    u64* p = reinterpret_cast<u64*>(address);
    const u64 low = v.x | static_cast<u64>(v.y) << 32;
    const u64 high = v.z | static_cast<u64>(v.w) << 32;
    const bool last = cell % 8 == 7;
    if (SHARED) {
      store_relaxed_word(p, low);
      if (!last) store_relaxed_word(p + 1, high);
    } else {
      p[0] = low;
      if (!last) p[1] = high;
    }
  }
  __device__ static u32 group() { return 0xffu << (threadIdx.x & 24); }
  // Whether all eight will do the next thing in one instruction.
  __device__ static bool as_one() {
    __syncwarp(group());
    return (__activemask() & group()) == group();
  }
  // Each its 16 bytes of a line; the eighth's hold the flag.
  __device__ static void store_part(Vec* p, Vec v) {
    if (as_one()) return store_relaxed(p, v);
    const bool flag = threadIdx.x % 8 == 7;
    if (!flag) store_relaxed(p, v);
    fence();
    __syncwarp(group());
    fence();
    if (flag) store_relaxed(p, v);
  }
  __device__ static Vec load_part(const Vec* p) {
    if (as_one()) return load_relaxed(p);
    const bool flag = threadIdx.x % 8 == 7;
    Vec v = {0, 0, 0, 0};
    if (flag) v = load_relaxed(p);
    fence();
    __syncwarp(group());
    fence();
    if (!flag) v = load_relaxed(p);
    return v;
  }
  __device__ static bool all(bool mine) { return __all_sync(group(), mine); }
};

struct LineTo {
  u64 base;
  u64 tag;
  static constexpr bool finished = false, worded = false;

  __device__ bool aligned() const { return true; }
  __device__ void shift(const Slice&) {}
  template <class Lane>
  __device__ u32 put(Lane&, u32 cell, Vec v) const {
    if (cell % 8 == 7) {
      v.z = static_cast<u32>(tag);
      v.w = static_cast<u32>(tag >> 32);
    }
    Lines::store_part(reinterpret_cast<Vec*>(base) + cell, v);
    return SEEN;
  }
  template <class Lane>
  __device__ void close(Lane&, bool) const {}
};

template <int FROM>
struct LineFrom {
  u64 base;
  u64 tag;
  static constexpr bool polled = true, worded = false;
  static constexpr int peer = FROM;

  __device__ bool aligned() const { return true; }
  __device__ void shift(const Slice&) {}
  __device__ Vec peek(u32 cell) const {
    return Lines::load_part(reinterpret_cast<const Vec*>(base) + cell);
  }
  __device__ u32 seen(Vec v) const {
    const bool flagged = (v.z | static_cast<u64>(v.w) << 32) == tag;
    return __shfl_sync(Lines::group(), flagged, 7, 8) ? SEEN : 0;
  }
  __device__ Vec opened(Vec v) const {
    const bool last = threadIdx.x % 8 == 7;
    return {v.x, v.y, last ? 0 : v.z, last ? 0 : v.w};
  }
  __device__ void done(u32) const {}
  template <class Lane>
  __device__ bool escaped(const Lane&) const {
    return false;
  }
};

}  // namespace stretto
