// epilogue.cuh -- what is made of a result before its kernel ends, row by row.
//
// A generated `struct F` says how cells of a result (16 bytes of it, and the same elements
// of every other array) are read, what is computed of one element, what of one row, and
// what is stored (epilogue.py). Here is the loop over a block's rows: cells are read once
// and kept in registers where there is room; values of a row are combined by a tree whose
// order only the row's length decides, so every block of every rank, and NumPy, gets the
// same bits: elements of a cell from left to right, then neighbouring cells in pairs,
// pairs of pairs, and so on. The first five levels are a warp's, the rest go by shared
// memory, at one barrier for each reduction of a batch of rows.
#pragma once

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

// G elements of type E, as they are stored.
template <class E, u32 G>
struct Words {
  static constexpr u32 nbytes = G * E::size, count = nbytes / 4;
  u32 of[count];

  // From memory that is ours alone, or (SHARED) that a peer may have written.
  template <bool SHARED = false>
  __device__ __forceinline__ void load(u64 base, u64 element, u32 n, bool whole) {
    const u64 address = base + element * E::size;
    if (whole) {
      if constexpr (nbytes >= 16) {
#pragma unroll
        for (u32 i = 0; i < nbytes / 16; ++i) {
          const Vec* p = reinterpret_cast<const Vec*>(address) + i;
          const Vec v = SHARED ? load_relaxed(p) : *p;
          of[4 * i] = v.x, of[4 * i + 1] = v.y, of[4 * i + 2] = v.z, of[4 * i + 3] = v.w;
        }
      } else if constexpr (nbytes == 8) {
        const u64 v = *reinterpret_cast<const u64*>(address);
        of[0] = static_cast<u32>(v), of[1] = static_cast<u32>(v >> 32);
      } else {
        of[0] = *reinterpret_cast<const u32*>(address);
      }
      return;
    }
    using Word = typename WordOf<E::size>::type;
    const Word* p = reinterpret_cast<const Word*>(address);
#pragma unroll
    for (u32 i = 0; i < count; ++i) of[i] = 0;
#pragma unroll
    for (u32 k = 0; k < G; ++k) {
      if (k < n) {
        const u32 word = SHARED ? load_relaxed_word(p + k) : p[k];
        of[k * E::size / 4] |= word << (8 * (k * E::size % 4));
      }
    }
  }

  __device__ __forceinline__ void store(u64 base, u64 element, u32 n, bool whole) const {
    const u64 address = base + element * E::size;
    if (whole) {
      if constexpr (nbytes >= 16) {
#pragma unroll
        for (u32 i = 0; i < nbytes / 16; ++i) {
          reinterpret_cast<Vec*>(address)[i] = {of[4 * i], of[4 * i + 1], of[4 * i + 2],
                                                of[4 * i + 3]};
        }
      } else if constexpr (nbytes == 8) {
        *reinterpret_cast<u64*>(address) = of[0] | static_cast<u64>(of[1]) << 32;
      } else {
        *reinterpret_cast<u32*>(address) = of[0];
      }
      return;
    }
    using Word = typename WordOf<E::size>::type;
    Word* p = reinterpret_cast<Word*>(address);
#pragma unroll
    for (u32 k = 0; k < G; ++k) {
      if (k < n) {
        p[k] = static_cast<Word>(of[k * E::size / 4] >> (8 * (k * E::size % 4)));
      }
    }
  }

  // As floats, 16 bytes of them after the other.
  __device__ __forceinline__ void widen(float (&out)[G]) const {
#pragma unroll
    for (u32 first = 0; first < G; first += E::lanes) {
      const u32 at = first * E::size / 4;
      float some[E::lanes];
      E::unpack({word(at), word(at + 1), word(at + 2), word(at + 3)}, some);
#pragma unroll
      for (u32 k = 0; k < E::lanes && first + k < G; ++k) out[first + k] = some[k];
    }
  }

  __device__ __forceinline__ static Words rounded(const float (&in)[G]) {
    Words made;
#pragma unroll
    for (u32 first = 0; first < G; first += E::lanes) {
      float some[E::lanes];
#pragma unroll
      for (u32 k = 0; k < E::lanes; ++k) some[k] = first + k < G ? in[first + k] : 0.0f;
      const Vec v = E::pack(some);
      const u32 words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
      for (u32 i = 0; i < 4; ++i) {
        if (first * E::size / 4 + i < count) made.of[first * E::size / 4 + i] = words[i];
      }
    }
    return made;
  }

 private:
  __device__ u32 word(u32 i) const { return i < count ? of[i] : 0; }
};

// One element.
template <class E>
__device__ __forceinline__ float load_one(u64 base, u64 element) {
  constexpr u32 G = 4 / E::size;
  Words<E, G> words;
  words.load(base, element, 1, false);
  float of[G];
  words.widen(of);
  return of[0];
}

template <class E>
__device__ __forceinline__ void store_one(u64 base, u64 element, float value) {
  constexpr u32 G = 4 / E::size;
  float of[G] = {value};
  Words<E, G>::rounded(of).store(base, element, 1, false);
}

// To an element type and back.
template <class E>
__device__ __forceinline__ float round_as(float value) {
  constexpr u32 G = 4 / E::size;
  float of[G] = {value};
  Words<E, G>::rounded(of).widen(of);
  return of[0];
}

// Reductions: what they begin with, and how two become one.
struct RowSum {
  static constexpr u32 nothing = 0;
  __device__ static float both(float a, float b) { return a + b; }
};
struct RowMax {
  static constexpr u32 nothing = 0xff800000u;
  __device__ static float both(float a, float b) { return Max::apply(a, b); }
};

// Neighbours in pairs, pairs of pairs: the same in every lane.
template <class R>
__device__ __forceinline__ float warp_tree(float value) {
#pragma unroll
  for (int d = 1; d < 32; d *= 2) {
    value = R::both(value, __shfl_xor_sync(~0u, value, d));
  }
  return value;
}

template <class R, u32 COUNT>
__device__ __forceinline__ float tree(float (&part)[COUNT]) {
#pragma unroll
  for (u32 step = 1; step < COUNT; step *= 2) {
#pragma unroll
    for (u32 i = 0; i < COUNT; i += 2 * step) {
      const float other = i + step < COUNT ? part[i + step] : as_float(R::nothing);
      part[i] = R::both(part[i], other);
    }
  }
  return part[0];
}

// Row `nth` of the block's, in the order of the spans.
template <u32 LENGTH, u32 N>
__device__ __forceinline__ Span row_of(const Span (&spans)[N], u32 nth) {
  Span found = {0, 0};
#pragma unroll
  for (u32 i = 0; i < N; ++i) {
    const u32 rows = spans[i].count / LENGTH;
    if (nth < rows) found = {spans[i].element + static_cast<u64>(nth) * LENGTH, LENGTH};
    nth -= rows;  // below zero, and so never again below `rows`, once it is found
  }
  return found;
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
  static constexpr u32 G = F::cell, cells = (F::row + G - 1) / G;
  static constexpr u32 groups = (cells + 31) / 32;
  static constexpr u32 each = (cells + THREADS - 1) / THREADS;
  static constexpr u32 words = each * (sizeof(typename F::Cell) / 4);
  static constexpr u32 share = 512 / ((THREADS + CLERK + 127) / 128);
  static constexpr u32 registers = share < 255 ? share : 255;
  static constexpr u32 room = registers < 80 ? 24 : registers - 56;
  static constexpr bool keep = words <= room;
  static constexpr u32 rows = !keep || room / words < 4 ? 1 : room / words < 8 ? 2 : 4;
};

// Some rows on their way through: what is known of each, and their cells.
template <class F, class Lane>
struct Batch {
  using W = Walk<F, Lane::C::threads>;
  using Args = typename F::Args;
  Lane& me;
  const Args& at;
  Span row[W::rows];
  typename F::Values known[W::rows];
  typename F::Cell kept[W::keep ? W::rows * W::each : 1];
  u32 turn = 0;

  __device__ __forceinline__ Batch(Lane& lane, const Args& args) : me(lane), at(args) {}

  __device__ u32 cell(u32 k) const { return me.thread + k * Lane::C::threads; }
  // Whether cells are 16 bytes that can be moved as one: the host has seen to it.
  static constexpr bool whole = F::row % W::G == 0;
  // Elements of a cell that are in the row.
  __device__ u32 count(u32 b, u32 k) const {
    const u32 first = cell(k) * W::G, length = row[b].count;
    return first >= length ? 0 : length - first < W::G ? length - first : W::G;
  }
  __device__ __forceinline__ void read(u32 b, u32 k, typename F::Cell& into) const {
    const u32 n = count(b, k);
    if (n > 0) {
      into.template load<Lane::C::shared>(at, row[b], cell(k) * W::G, n, whole);
    }
  }
  __device__ __forceinline__ typename F::Floats floats(u32 b, u32 k) const {
    if constexpr (W::keep) return kept[b * W::each + k].widen();
    typename F::Cell again;
    read(b, k, again);
    return again.widen();
  }

  __device__ __forceinline__ void begin() {
    if constexpr (W::keep) {
#pragma unroll
      for (u32 i = 0; i < W::rows * W::each; ++i) {
        read(i / W::each, i % W::each, kept[i]);
      }
    }
#pragma unroll
    for (u32 b = 0; b < W::rows; ++b) {
      if (row[b].count > 0) known[b] = F::begin(at, row[b]);
    }
  }

  // This thread's part of a reduction, of one cell.
  template <class D>
  __device__ __forceinline__ float part(u32 b, u32 k) const {
    using R = typename D::R;
    const u32 n = count(b, k);
    if (n == 0) return as_float(R::nothing);
    const typename F::Floats f = floats(b, k);
    float total = D::of(known[b], f, 0);
#pragma unroll
    for (u32 j = 1; j < W::G; ++j) {
      if (whole || j < n) total = R::both(total, D::of(known[b], f, j));
    }
    return total;
  }

  template <u32 I>
  __device__ __forceinline__ void reduce() {
    if constexpr (I < F::reductions) {
      using D = typename F::template Reduce<I>;
      using R = typename D::R;
      using Groups = float[2][W::rows][W::groups];
      float(&groups)[W::rows][W::groups] = of_block<Groups>()[turn];
#pragma unroll(W::keep ? W::each : 1)
      for (u32 k = 0; k < W::each; ++k) {
#pragma unroll
        for (u32 b = 0; b < W::rows; ++b) {
          const float total = warp_tree<R>(part<D>(b, k));
          const u32 group = cell(k) / 32;
          if (me.thread % 32 == 0 && group < W::groups) groups[b][group] = total;
        }
      }
      me.barrier();
#pragma unroll
      for (u32 b = 0; b < W::rows; ++b) {
        constexpr u32 warps = (W::groups + 31) / 32;
        float some[warps];
#pragma unroll
        for (u32 i = 0; i < warps; ++i) {
          const u32 leaf = i * 32 + me.thread % 32;
          some[i] = warp_tree<R>(leaf < W::groups ? groups[b][leaf]
                                                  : as_float(R::nothing));
        }
        D::settle(known[b], tree<R>(some));
      }
      turn ^= 1;  // who is still reading is waited for at the next barrier
      reduce<I + 1>();
    }
  }

  __device__ __forceinline__ void store() const {
#pragma unroll(W::keep ? W::each : 1)
    for (u32 k = 0; k < W::each; ++k) {
#pragma unroll
      for (u32 b = 0; b < W::rows; ++b) {
        const u32 n = count(b, k);
        if (n == 0) continue;
        F::store(at, row[b], cell(k) * W::G, n, whole, known[b], floats(b, k));
      }
    }
#pragma unroll
    for (u32 b = 0; b < W::rows; ++b) {
      if (me.thread == 0 && row[b].count > 0) F::store_row(at, row[b], known[b]);
    }
  }
};

// All of the block's rows in this tile.
template <class F, class Lane, u32 N>
__device__ __forceinline__ void conclude_rows(Lane& me, const typename F::Args& at,
                                              const Span (&spans)[N]) {
  u32 many = 0;
#pragma unroll
  for (u32 i = 0; i < N; ++i) many += spans[i].count / F::row;
  Batch<F, Lane> batch(me, at);
  constexpr u32 rows = Walk<F, Lane::C::threads>::rows;
#pragma unroll 1
  for (u32 first = 0; first < many; first += rows) {
#pragma unroll
    for (u32 b = 0; b < rows; ++b) {
      batch.row[b] = row_of<F::row>(spans, first + b);
    }
    batch.begin();
    batch.template reduce<0>();
    batch.store();
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
      n[d] = column >= span.count ? 0 : span.count - column < G ? span.count - column : G;
      if (n[d] == 0) continue;
      cells[d].template load<Lane::C::shared>(at, span, column, n[d],
                                              aligned && n[d] == G);
    }
#pragma unroll
    for (u32 d = 0; d < DEPTH; ++d) {
      if (n[d] == 0) continue;
      F::store(at, span, (first + d * T) * G, n[d], aligned && n[d] == G, known,
               cells[d].widen());
    }
  }
}

// What follows the steps of a tile. Every thread of the lane comes here, also when the
// lane has given up: there are barriers.
template <class F, class Lane, class... S>
__device__ __forceinline__ void conclude(Lane& me, const typename F::Args& at, S... each) {
  me.barrier();  // a row is of many threads
  const Span spans[] = {each...};
  if constexpr (F::row > 0) {
    conclude_rows<F>(me, at, spans);
  } else {
#pragma unroll 1
    for (const Span& one : spans) conclude_cells<F>(me, at, one);
  }
}

}  // namespace stretto
