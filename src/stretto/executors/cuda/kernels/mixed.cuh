// mixed.cuh -- sums of elements that do not depend on their order, and FP8 with scales.
//
// `mix_pieces` makes one pass over pieces of tensors: what is read is mixed and added up
// as the host does it (transfer/copying/mixing.py), and stored where a copy is wanted.
// `quantise` makes a block of a matrix FP8: its largest element becomes the largest FP8,
// and what all were divided by is its scale (weights/casts.py, bit for bit).
#pragma once

#include "element.cuh"
#include "stream.cuh"
#include "words.cuh"

namespace stretto {

__device__ __forceinline__ u32 mix(u32 bits) {
  bits = (bits + 0x9E3779B9u) * 0x85EBCA6Bu;
  bits = (bits ^ (bits >> 15)) * 0xC2B2AE35u;
  return bits ^ (bits >> 13);
}

// What a word adds that holds elements of so many bits.
template <u32 BITS>
__device__ __forceinline__ u32 mix_word(u32 word) {
  u32 total = 0;
#pragma unroll
  for (u32 k = 0; k < 32; k += BITS) {
    total += mix(BITS == 32 ? word : (word >> k) & ((1ull << BITS) - 1));
  }
  return total;
}

template <u32 BITS>
__device__ __forceinline__ u32 mix_vector(const Vec& v) {
  return mix_word<BITS>(v.x) + mix_word<BITS>(v.y) + mix_word<BITS>(v.z) +
         mix_word<BITS>(v.w);
}

// A thread loads AHEAD vectors before it mixes the first. What does not begin at a
// multiple of 16 bytes, and what is left at the end, goes one element at a time.
template <u32 BITS, class E>
__device__ __forceinline__ u32 mix_piece(u64 src, u64 dst, u64 nbytes) {
  constexpr u32 AHEAD = 4;
  const u64 vectors = ((src | dst) & 15) ? 0 : nbytes / 16, step = blockDim.x;
  const Vec* const from = reinterpret_cast<const Vec*>(src);
  Vec* const to = reinterpret_cast<Vec*>(dst);
  u32 total = 0;
  u64 i = threadIdx.x;
  for (; i + (AHEAD - 1) * step < vectors; i += AHEAD * step) {
    Vec held[AHEAD];
#pragma unroll
    for (u32 k = 0; k < AHEAD; ++k) held[k] = from[i + k * step];
#pragma unroll
    for (u32 k = 0; k < AHEAD; ++k) {
      if (dst) to[i + k * step] = held[k];
      total += mix_vector<BITS>(held[k]);
    }
  }
  for (; i < vectors; i += step) {
    const Vec held = from[i];
    if (dst) to[i] = held;
    total += mix_vector<BITS>(held);
  }
  const u64 count = nbytes / sizeof(E);
  for (u64 k = vectors * (16 / sizeof(E)) + threadIdx.x; k < count; k += step) {
    const E held = reinterpret_cast<const E*>(src)[k];
    if (dst) reinterpret_cast<E*>(dst)[k] = held;
    total += mix(held);
  }
  return total;
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
#define STRETTO_WARP_ADDS
#endif

__device__ __forceinline__ void add_to(u32* sum, u32 mine) {
#ifdef STRETTO_WARP_ADDS
  mine = __reduce_add_sync(0xffffffffu, mine);
  if (threadIdx.x % 32 != 0) return;
#endif
  atomicAdd(sum, mine);
}

__device__ __forceinline__ void mix_pieces(const Mixed& m) {
  for (u32 n = blockIdx.x; n < m.count; n += gridDim.x) {
    const u64* const piece = m.pieces + 4ull * n;
    const u64 src = piece[0], dst = piece[1], nbytes = piece[2];
    const u32 size = piece[3] & 255;
    u32 mine = 0;
    if (size == 1) {
      mine = mix_piece<8, u8>(src, dst, nbytes);
    } else if (size == 2) {
      mine = mix_piece<16, u16>(src, dst, nbytes);
    } else {
      mine = mix_piece<32, u32>(src, dst, nbytes);
    }
    add_to(m.sums + (piece[3] >> 8), mine);
  }
}

__device__ __forceinline__ u32 fewer_of(u32 a, u32 b) { return a < b ? a : b; }

// The larger of two, or what is no number.
__device__ __forceinline__ float larger(float a, float b) {
  return a != a || a >= b ? a : b;
}

// The largest that any thread of a block has.
template <u32 THREADS>
__device__ __forceinline__ float largest_of_block(float mine) {
  __shared__ float all[THREADS];
  constexpr u32 FEW = THREADS < 32 ? THREADS : 32;
  all[threadIdx.x] = mine;
  __syncthreads();
  if (threadIdx.x < FEW) {
    for (u32 i = threadIdx.x + FEW; i < THREADS; i += FEW) {
      all[threadIdx.x] = larger(all[threadIdx.x], all[i]);
    }
  }
  __syncthreads();
  float found = all[0];
  for (u32 i = 1; i < FEW; ++i) found = larger(found, all[i]);
  __syncthreads();  // before the next block of the matrix writes there
  return found;
}

// Four elements that lie together, from the one of a number on.
template <class E>
__device__ __forceinline__ void load_four(const char* src, u64 at, float (&out)[4]) {
  const char* const from = src + at * E::size;
  Vec v = {0, 0, 0, 0};
  if constexpr (E::size == 4) {
    v = *reinterpret_cast<const Vec*>(from);
  } else {
    struct alignas(8) Two {
      u32 x, y;
    };
    const Two two = *reinterpret_cast<const Two*>(from);
    v.x = two.x;
    v.y = two.y;
  }
  typename E::Wide wide[E::lanes];
  E::unpack(v, wide);
#pragma unroll
  for (u32 k = 0; k < 4; ++k) out[k] = wide[k];
}

// The fours of a block of a matrix, as a thread comes by them: without a division each.
struct Fours {
  u32 across, columns, down, right;
  u32 column;
  u64 at;

  __device__ __forceinline__ Fours(u64 first, u32 across, u32 columns, u32 threads)
      : across(across), columns(columns), down(threads / across),
        right(threads % across), column(threadIdx.x % across),
        at(first + u64(threadIdx.x / across) * columns + column * 4) {}

  __device__ __forceinline__ void next() {
    at += u64(down) * columns + right * 4;
    column += right;
    if (column >= across) {
      column -= across;
      at += columns - across * 4;
    }
  }
};

// The smallest normal number: quotients by smaller ones may be larger than `most`.
constexpr float LEAST_SCALE = 1.17549435e-38f;

// Rows and blocks are whole fours of elements, at the source and at the destination.
template <class E, class Q, u32 THREADS>
__device__ __forceinline__ void quantise(const Quantised& q, float most) {
  const u32 down = (q.rows + q.block_rows - 1) / q.block_rows;
  const u32 wide = (q.columns + q.block_columns - 1) / q.block_columns;
  const u32 blocks = q.planes * down * wide;
  for (u32 n = blockIdx.x; n < blocks; n += gridDim.x) {
    const u32 plane = n / (down * wide), row = n / wide % down * q.block_rows;
    const u32 column = n % wide * q.block_columns;
    const u32 high = fewer_of(q.block_rows, q.rows - row);
    const u32 across = fewer_of(q.block_columns, q.columns - column) / 4;
    const u64 first = (u64(plane) * q.rows + row) * q.columns + column;
    const Fours begin(first, across, q.columns, THREADS);
    float mine = 0;
    Fours four = begin;
    for (u32 i = threadIdx.x; i < high * across; i += THREADS, four.next()) {
      float held[4];
      load_four<E>(q.src, four.at, held);
#pragma unroll
      for (u32 k = 0; k < 4; ++k) mine = larger(mine, fabsf(held[k]));
    }
    const float largest = largest_of_block<THREADS>(mine);
    const float scale = largest > 0 ? larger(largest / most, LEAST_SCALE) : 1;
    if (threadIdx.x == 0) q.scales[n] = scale;
    four = begin;
    for (u32 i = threadIdx.x; i < high * across; i += THREADS, four.next()) {
      float held[4], made[Q::lanes] = {};
      load_four<E>(q.src, four.at, held);
#pragma unroll
      for (u32 k = 0; k < 4; ++k) made[k] = held[k] / scale;
      reinterpret_cast<u32*>(q.dst)[four.at / 4] = Q::pack(made).x;
    }
  }
}

}  // namespace stretto
