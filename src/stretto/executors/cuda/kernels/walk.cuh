// walk.cuh -- how a block goes through rows: who has which cells, how many rows at a time.
#pragma once

#include "board.cuh"
#include "cells.cuh"
#include "cluster.cuh"
#include "lane.cuh"

namespace stretto {

// One of it for the block.
template <class T>
__device__ __forceinline__ T& of_block() {
  __shared__ T one;
  return one;
}

// Elements of the result, counted from its first: a slice of it, or a row; 0: nothing.
struct Span {
  u64 element;
  u32 count;
};

template <class Lane>
__device__ __forceinline__ Span span(const Lane&, const Slice& s, i64 first) {
  constexpr u32 size = Lane::E::size;
  return {static_cast<u64>(first) + s.start / size, s.nbytes / size};
}

template <u32 I, class First, class... Rest>
struct Nth : Nth<I - 1, Rest...> {};
template <class First, class... Rest>
struct Nth<0, First, Rest...> {
  using type = First;
};

// How a block of THREADS goes through rows of F: cells of a thread, rows at a time, and
// whether cells are kept (else read again in every pass).
template <class F, u32 THREADS>
struct Walk {
  static constexpr u32 G = F::cell, length = F::row / F::share;  // the block's part
  static constexpr u32 cells = (length + G - 1) / G;
  static constexpr u32 groups = (cells + 31) / 32 * F::share;
  static_assert(F::share == 1 || length % (32 * G) == 0, "parts are whole groups");
  static constexpr u32 warps = (groups + 31) / 32;  // of which each reads 32 sums
  static constexpr u32 each = (cells + THREADS - 1) / THREADS;
  static constexpr u32 words = each * (sizeof(typename F::Cell) / 4);
  static constexpr u32 evenly = 512 / ((THREADS + CLERK + 127) / 128);
  static constexpr u32 registers = evenly < 255 ? evenly : 255;
  static constexpr u32 room = registers < 80 ? 24 : registers - 56;
  static constexpr bool keep = F::held > 0 || words <= room;
  static constexpr u32 some = !keep || room / words < 4 ? 1 : room / words < 8 ? 2 : 4;
  static constexpr u32 posts = F::share > 1 ? BOARD / (groups / F::share) : 4;
  static_assert(posts > 0, "epilogue.py gives a row more blocks");
  static constexpr u32 rows = F::held > 0 ? F::held : some < posts ? some : posts;
  // Rows that are on their way in a block: more than a thread's where warps have rows
  // of their own.
  static constexpr u32 slots = F::slots > 0 ? F::slots : rows;
};

// Words of a cluster, by parity of the epoch and of the exchange in it: who writes
// again knows that everybody has read what was there.
template <class W>
using Board = u64[4][W::slots][W::groups];

// All threads of a block whose rows are shared, before anything else: the clerk empties
// the words. Data threads wait for their neighbours as late as they can, before they tell them a sum (held.cuh,
// epilogue.cuh): waiting here, or before packets are awaited, was 0.7 us slower.
template <class F, u32 THREADS>
__device__ __forceinline__ void begin_cluster() {
  using Words = Board<Walk<F, THREADS>>;
  if (threadIdx.x < THREADS) return cluster_arrive_relaxed();
  u64* words = &of_block<Words>()[0][0][0];
  for (u32 i = threadIdx.x - THREADS; i < sizeof(Words) / 8; i += CLERK) words[i] = 0;
  cluster_arrive();
  cluster_wait();
}

}  // namespace stretto
