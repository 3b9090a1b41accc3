// counts.cuh -- sizes that lie on the device: how much there is to move, read in the call.
//
// Every rank has the counts of all ranks in its own memory (a small all_gather before
// this launch brought them there), so all find the same sizes, tiles and offsets, and
// nothing is exchanged about them. What the host said is only how much there may be:
// staging and blocks are made for that. A count that is larger is told, with a record
// of its own kind, and nothing is moved: every rank sees it, and says the same. How long
// its arrays are only a rank itself knows: if they are too short it does not begin, so no
// peer touches them, and those that have begun are told.
#pragma once

#include "stretto.cuh"

namespace stretto {

// What the host says in place of the table.
template <class Table>
struct Counted {
  u64 matrix;    // the counts, row by row, 64 bits each
  i64 number;    // of them
  i64 most;      // what each may be
  i64 input;     // the elements that this rank's arrays have
  i64 output;
  u64 received;  // where the sizes of what is received go, or 0
};

// What a rank's counts come to: the largest atom, and the ends of its arrays.
struct Extent {
  i64 largest, input, output;
};

template <int R>
struct Rank {};

__device__ constexpr i64 larger(i64 a, i64 b) { return a > b ? a : b; }

// What does not fit: the number of a count, or one of these.
constexpr i64 NOTHING = -3, ALL_OUTPUT = -2, ALL_INPUT = -1;

// Whether everything fits; if not, one thread says what does not.
template <class C, class Table>
__device__ __forceinline__ bool fits(const Params& p, const Counted<Table>& given,
                                     const i64* counts, const Extent& extent) {
  i64 which = NOTHING, got = 0, want = given.most;
  for (i64 i = 0; i < given.number && which == NOTHING; ++i) {
    if (counts[i] < 0 || counts[i] > given.most) which = i, got = counts[i];
  }
  if (which == NOTHING && extent.input > given.input) {
    which = ALL_INPUT, got = extent.input, want = given.input;
  } else if (which == NOTHING && extent.output > given.output) {
    which = ALL_OUTPUT, got = extent.output, want = given.output;
  }
  if (which == NOTHING) return true;
  if (blockIdx.x % (C::blocks * C::lanes) == 0 && threadIdx.x == 0) {
    const Place at{C::rank, 0, C::lane, 0, 0};
    const i64 whose = which < 0 ? C::rank : which * C::ranks / given.number;
    give_up<C::ranks>(p, at, COUNTS, static_cast<int>(which), static_cast<int>(whose),
                      static_cast<u64>(got), static_cast<u64>(want));
  }
  return false;
}

// Run one lane of one block, as `run` does, with sizes from the device.
template <class C, class Table, class Steps>
__device__ __forceinline__ void run(const Params& given, const Counted<Table>& sizes,
                                    u32 block, Steps steps) {
  after_earlier_work();
  const i64* counts = reinterpret_cast<const i64*>(sizes.matrix);
  const bool tells = block == 0 && C::lane == 0 && threadIdx.x == 0;
  i64* received = tells ? reinterpret_cast<i64*>(sizes.received) : nullptr;
  Table at;
  const Extent extent = read_table(Rank<C::rank>{}, counts, at, received);
  if (!fits<C>(given, sizes, counts, extent)) return;
  // The tiles that `layout` would make: no larger than those that staging is for.
  constexpr i64 grain = 16 / C::Element::size > 0 ? 16 / C::Element::size : 1;
  const i64 room = static_cast<i64>(given.tile) * C::blocks;
  const i64 tiles = larger(1, (extent.largest + room - 1) / room);
  const i64 slices = tiles * C::blocks;
  const i64 tile = (extent.largest + slices - 1) / slices;
  Params p = given;
  p.tiles = static_cast<u32>(tiles);
  p.tile = static_cast<u64>(larger(grain, (tile + grain - 1) / grain * grain));
  run<C>(p, at, block, steps);
}

}  // namespace stretto
