// places.cuh -- what dispatch and combine share: where rows lie, and in which order.
//
// Every rank has two halves of memory that peers write, used in turn. In a half each peer
// has a part of its own, of a row for every token that it may have: no routing can
// overflow it, and nobody asks anybody for a place. In each call every block hears a
// block of every rank. Who begins call e + 2 has heard, in e + 1, kernels that began after
// those of call e had ended: all have left e.
#pragma once

#include "channel.cuh"
#include "element.cuh"

#ifndef STRETTO_SHARED
#define STRETTO_SHARED(type, name) __shared__ type name
#endif

namespace stretto {

constexpr u32 WARPS = THREADS / 32;
constexpr u32 VECS = HIDDEN * Element::size / 16;  // of 16 bytes, of a row as it was
constexpr u32 MADE_OF = QUANTISED ? 16 / Element::lanes : 1;  // of those, one under way
constexpr u32 ROW_VECS = VECS / MADE_OF;
constexpr int GROUPS = QUANTISED ? HIDDEN / 128 : 0;  // each has a scale
constexpr u64 PACKETS = u64(RANKS) * BLOCKS * 16;  // bytes of a set: one of each block
constexpr u32 SLOTS = RANKS * MAX_TOKENS;
enum Layout : u32 { BY_TOKEN, BY_EXPERT, BY_RANK };
constexpr u32 NOBODYS = 0xffffffffu;

__device__ __forceinline__ u32 least(u32 a, u32 b) { return a < b ? a : b; }

// Which rank a row is of, of those that came, and its slot there; `rows` of each rank.
struct Came {
  u32 source, slot, line;  // line: of ids and weights
};
__device__ __forceinline__ u32 all_rows(const u32* rows) {
  u32 sum = 0;
#pragma unroll
  for (u32 q = 0; q < RANKS; ++q) sum += rows[q];
  return sum;
}
__device__ __forceinline__ u32 line_of(const u32* rows, u32 source, u32 slot) {
  u32 first = source * MAX_TOKENS;
  if (LAYOUT != BY_RANK) {
    first = 0;
#pragma unroll
    for (u32 q = 0; q + 1 < RANKS; ++q) first += q < source ? rows[q] : 0;
  }
  return first + slot;
}
__device__ __forceinline__ Came came(const u32* rows, u32 row) {
  u32 source = 0, first = 0;
#pragma unroll
  for (u32 q = 0; q + 1 < RANKS; ++q) {
    const u32 next = first + rows[q];
    if (source == q && row >= next) source = q + 1, first = next;
  }
  return {source, row - first, line_of(rows, source, row - first)};
}

// Add the elements of a vector, times a weight, product and sum rounded.
__device__ __forceinline__ void add_vec(float (&total)[Element::lanes], const Vec& v,
                                        float weight) {
  float part[Element::lanes];
  Element::unpack(v, part);
#pragma unroll
  for (u32 i = 0; i < Element::lanes; ++i) total[i] += part[i] * weight;
}

}  // namespace stretto
