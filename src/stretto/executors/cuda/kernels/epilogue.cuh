// epilogue.cuh -- what is made of a result before its kernel ends.
//
// A generated `struct F` (epilogue.py) says how cells of the result and of other arrays
// are read, what is computed of one element, what of one row, and what is stored.
// Here is the loop over what a block has completed in a tile: by rows, or cell by cell.
#pragma once

#include "rows.cuh"

namespace stretto {

// Row `nth` of the block's, in the order of the spans; they hold LENGTH of every row.
template <u32 LENGTH, u32 N>
__device__ __forceinline__ Span row_of(const Span (&spans)[N], u32 nth, u32 piece) {
  Span found = {0, 0};
#pragma unroll
  for (u32 i = 0; i < N; ++i) {
    const u32 rows = spans[i].count / LENGTH;
    if (nth < rows) found = {spans[i].element + static_cast<u64>(nth) * LENGTH, LENGTH};
    nth -= rows;  // below zero, and so never again below `rows`, once it is found
  }
  found.element -= found.count > 0 ? static_cast<u64>(piece) * LENGTH : 0;
  return found;
}

// All of the block's rows in this tile.
template <class F, class Lane, u32 N>
__device__ __forceinline__ void conclude_rows(Lane& me, const typename F::Args& at,
                                              const Span (&spans)[N]) {
  constexpr u32 length = Walk<F, Lane::C::threads>::length;
  u32 many = 0;
#pragma unroll
  for (u32 i = 0; i < N; ++i) many += spans[i].count / length;
  Batch<F, Lane> batch(me, at);
  constexpr u32 rows = Walk<F, Lane::C::threads>::rows;
#pragma unroll 1
  for (u32 first = 0; first < many; first += rows) {
#pragma unroll
    for (u32 b = 0; b < rows; ++b) {
      batch.row[b] = row_of<length>(spans, first + b, batch.piece());
    }
    batch.begin();
    batch.template reduce<0>(Nothing{});
    batch.template store_cells<true, true>();
    batch.store_rows();
  }
}

// Without rows: cell by cell.
template <class F, class Lane>
__device__ __forceinline__ void conclude_cells(Lane& me, const typename F::Args& at,
                                               const Span& span) {
  constexpr u32 G = F::cell, T = Lane::C::threads, DEPTH = 2;
  const typename F::Values known = F::begin(at, span);
  const bool aligned = at.aligned && span.element % G == 0;
#pragma unroll 1
  for (u32 first = me.thread; first * G < span.count; first += DEPTH * T) {
    typename F::Cell cells[DEPTH];
    u32 n[DEPTH];
#pragma unroll
    for (u32 d = 0; d < DEPTH; ++d) {
      const u32 column = (first + d * T) * G;
      const u32 left = column < span.count ? span.count - column : 0;
      n[d] = left < G ? left : G;
      if (n[d] == 0) continue;
      cells[d].template load<Lane::C::shared>(at, span, column, n[d],
                                              aligned && n[d] == G);
    }
#pragma unroll
    for (u32 d = 0; d < DEPTH; ++d) {
      if (n[d] == 0) continue;
      const u32 column = (first + d * T) * G;
      const bool all = aligned && n[d] == G;
      const typename F::Floats f = cells[d].widen();
      F::store_first(at, span, column, n[d], all, known, f);
      F::store(at, span, column, n[d], all, known, f);
    }
  }
}

// What follows the steps of a tile. Every thread of the lane comes here, also when the
// lane has given up: there are barriers.
template <class F, class Lane, class... S>
__device__ __forceinline__ void conclude(Lane& me, u32 iteration,
                                         const typename F::Args& at, S... each) {
  me.barrier();  // a row is of many threads
  if (F::near && iteration == 0) cluster_wait();
  const Span spans[] = {each...};
  if constexpr (F::row > 0) {
    conclude_rows<F>(me, at, spans);
  } else {
#pragma unroll 1
    for (const Span& one : spans) conclude_cells<F>(me, at, one);
  }
}

}  // namespace stretto
