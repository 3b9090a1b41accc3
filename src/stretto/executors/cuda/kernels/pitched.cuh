// pitched.cuh -- parts of a caller's array that are not contiguous: rows with a pitch.
//
// An all_to_all that splits or joins an inner axis exchanges parts of rows: row r of part
// q lies at (r * ranks + q) * row. The plan counts a part's bytes as if it were
// contiguous; here every cell finds its row. Cells that cross the end of a row go word by
// word, so any length is right, and multiples of 16 bytes are fast.
#pragma once

#include "vector.cuh"

namespace stretto {

// Bytes of a part, and of its rows.
struct Pitch {
  u64 part;
  u64 row;
};

template <u32 RANKS, u32 GRAIN, bool SHARED, bool OUTPUT>
struct Pitched : Caller<GRAIN, SHARED, OUTPUT> {
  u64 from;  // bytes from the part's first, below 4 GB
  u32 row;

  __device__ Pitched(Caller<GRAIN, SHARED, OUTPUT> plain, u64 array, Pitch of) {
    const u64 offset = plain.base - array, part = offset / of.part;
    this->base = array + part * of.row;
    from = offset - part * of.part;
    row = static_cast<u32>(of.row);
  }
  __device__ u64 at(u32 cell, u32 more = 0) const {
    const u32 offset = static_cast<u32>(from) + cell * 16 + more;
    const u32 line = offset / row;
    return this->base + static_cast<u64>(line) * RANKS * row + (offset - line * row);
  }

  __device__ bool aligned() const {
    return (this->base | from | row) % 16 == 0;
  }
  __device__ void shift(const Slice& s) { from += s.start; }
  __device__ Vec peek(u32 cell) const {
    return load_cell<SHARED>(at(cell));
  }
  __device__ Vec peek_words(u32 cell, u32 nbytes) const {
    u64 half[2] = {0, 0};
#pragma unroll 1
    for (u32 k = 0; k < nbytes; k += GRAIN) {
      const Vec word = load_words<GRAIN, SHARED>(at(cell, k), GRAIN);
      const u64 placed = (word.x | static_cast<u64>(word.y) << 32) << (8 * (k % 8));
      half[0] |= k < 8 ? placed : 0;
      half[1] |= k < 8 ? 0 : placed;
    }
    return {static_cast<u32>(half[0]), static_cast<u32>(half[0] >> 32),
            static_cast<u32>(half[1]), static_cast<u32>(half[1] >> 32)};
  }
  template <class Lane>
  __device__ u32 put(Lane&, u32 cell, Vec v) const {
    store_cell<SHARED>(at(cell), v);
    return SEEN;
  }
  template <class Lane>
  __device__ void put_words(Lane&, u32 cell, Vec v, u32 nbytes) const {
    const u64 low = v.x | static_cast<u64>(v.y) << 32;
    const u64 high = v.z | static_cast<u64>(v.w) << 32;
#pragma unroll 1
    for (u32 k = 0; k < nbytes; k += GRAIN) {
      const u64 word = (k < 8 ? low : high) >> (8 * (k % 8));
      const Vec one = {static_cast<u32>(word), static_cast<u32>(word >> 32), 0, 0};
      store_words<GRAIN, SHARED>(at(cell, k), one, GRAIN);
    }
  }
};

// A contiguous operand, of an array that begins there, as it really lies.
template <u32 RANKS, u32 GRAIN, bool SHARED, bool OUTPUT>
__device__ __forceinline__ auto pitched(Caller<GRAIN, SHARED, OUTPUT> plain,
                                        u64 array, Pitch of) {
  return Pitched<RANKS, GRAIN, SHARED, OUTPUT>(plain, array, of);
}

}  // namespace stretto
