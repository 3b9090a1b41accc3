// emulate.hpp -- enough of CUDA to run a generated kernel on a CPU, a thread per thread.
//
// Accesses of 16 bytes are four relaxed atomics in an odd order, so whoever relies on more
// than whole words is found out. Every load gives way to other threads.
//
// Every kernel of the tests is compiled after it, so it includes nothing of C++'s library:
// what needs that is in emulate.cpp, compiled once.
#include <math.h>
#include <sched.h>
#include <stdint.h>
#include <string.h>

#define __device__
#define __global__
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(...)
#define __grid_constant__
#define __cluster_dims__(x, y, z)

struct Index {
  unsigned x;
};
extern __thread Index threadIdx, blockIdx;

// Arrive at a barrier of this block, and maybe wait; return whether anybody's value holds.
bool meet(int id, unsigned total, bool waits, bool value = false);
// Whether threads did not come where others waited.
bool is_stuck();

// What is shared by a block: one of each type, of which `kind` is the number.
struct Block;
extern __thread Block* block_here;
void* shared_by(Block* block, const void* kind, unsigned long size);
template <class T>
inline const char kind_of = 0;
template <class T>
T& of_a_block(Block* which) {
  return *static_cast<T*>(shared_by(which, &kind_of<T>, sizeof(T)));
}
template <class T>
T& of_this_block() {
  return of_a_block<T>(block_here);
}

inline unsigned __float_as_uint(float f) {
  unsigned u;
  __builtin_memcpy(&u, &f, 4);
  return u;
}
inline float __uint_as_float(unsigned u) {
  float f;
  __builtin_memcpy(&f, &u, 4);
  return f;
}
inline unsigned long long atomicCAS(unsigned long long* p, unsigned long long want,
                                    unsigned long long then) {
  return __sync_val_compare_and_swap(p, want, then);
}
inline void __syncwarp() { meet(100 + threadIdx.x / 32, 32, true); }
struct Exchange {
  float of[1056];
};
inline float __shfl_xor_sync(unsigned, float v, int d) {
  Exchange& block = of_this_block<Exchange>();
  block.of[threadIdx.x] = v;
  __syncwarp();
  const float other = block.of[threadIdx.x ^ d];
  __syncwarp();
  return other;
}
inline float __shfl_sync(unsigned, float v, int from) {
  Exchange& block = of_this_block<Exchange>();
  block.of[threadIdx.x] = v;
  __syncwarp();
  const float other = block.of[threadIdx.x / 32 * 32 + from % 32];
  __syncwarp();
  return other;
}
inline unsigned __ballot_sync(unsigned, bool says) {
  Exchange& block = of_this_block<Exchange>();
  block.of[threadIdx.x] = says;
  __syncwarp();
  unsigned bits = 0;
  for (unsigned i = 0; i < 32; ++i) {
    bits |= unsigned(block.of[threadIdx.x / 32 * 32 + i] != 0) << i;
  }
  __syncwarp();
  return bits;
}
inline bool __all_sync(unsigned all, bool says) { return __ballot_sync(all, says) == ~0u; }
// Conversions, to nearest even.
inline float half(unsigned raw) {
  const unsigned short bits = raw;
  _Float16 h;
  __builtin_memcpy(&h, &bits, 2);
  return h;
}
inline unsigned halves(float a, float b) {
  const _Float16 h[2] = {static_cast<_Float16>(a), static_cast<_Float16>(b)};
  unsigned w;
  __builtin_memcpy(&w, h, 4);
  return w;
}
inline unsigned brain(float f) {
  const unsigned u = __float_as_uint(f);
  if (f != f) return 0x7fff;
  return (u + 0x7fff + (u >> 16 & 1)) >> 16;
}
inline unsigned brains(float a, float b) { return brain(a) | brain(b) << 16; }
namespace stretto {
using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned;
using u64 = unsigned long long;
using i64 = long long;
struct alignas(16) Vec {
  u32 x, y, z, w;
};
template <class T>
struct Same {
  using type = T;
};
template <class T>
T load_relaxed_word(const T* p) {
  sched_yield();
  return __atomic_load_n(p, __ATOMIC_RELAXED);
}
template <class T>
void store_relaxed_word(T* p, typename Same<T>::type v) {
  __atomic_store_n(p, v, __ATOMIC_RELAXED);
}
inline Vec load_relaxed(const Vec* p) {
  const u32* words = reinterpret_cast<const u32*>(p);
  u32 v[4];
  constexpr int order[4] = {3, 0, 2, 1};
  for (const int word : order) v[word] = load_relaxed_word(words + word);
  return {v[0], v[1], v[2], v[3]};
}
inline void store_relaxed(Vec* p, Vec v) {
  u32* words = reinterpret_cast<u32*>(p);
  const u32 of[4] = {v.x, v.y, v.z, v.w};
  constexpr int order[4] = {2, 0, 1, 3};
  for (const int word : order) {
    store_relaxed_word(words + word, of[word]);
    sched_yield();
  }
}
inline Vec load_plain(const Vec* p) { return *p; }
inline void store_plain(Vec* p, Vec v) { *p = v; }
inline void store_release(u64* p, u64 v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }
inline u64 load_acquire(const u64* p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
inline u64 take_number(u64* p) { return __atomic_fetch_add(p, 1, __ATOMIC_RELAXED); }
inline void fence() { __atomic_thread_fence(__ATOMIC_ACQ_REL); }
u64 clock_ns();
}  // namespace stretto

// Clusters: everybody arrives once a launch; words of other blocks are at the same place.
extern unsigned of_cluster;  // blocks
unsigned late_words();       // that were for blocks that had ended
// Return the block so many after this one, to which a word is about to be written.
Block* told_block(int after);
namespace stretto {
void cluster_arrive();
inline void cluster_arrive_relaxed() { cluster_arrive(); }
void cluster_wait();
template <u32 SHARE, class Board>
void tell_block(Board& board, u64& word, u32 block, u64 value) {
  Block* there = told_block(int(block) - int(blockIdx.x % SHARE));
  const auto offset = reinterpret_cast<char*>(&word) - reinterpret_cast<char*>(&board);
  auto* base = reinterpret_cast<char*>(&of_a_block<Board>(there));
  __atomic_store_n(reinterpret_cast<u64*>(base + offset), value, __ATOMIC_RELAXED);
}
inline u64 told(const u64& word) {
  sched_yield();
  return __atomic_load_n(&word, __ATOMIC_RELAXED);
}
}  // namespace stretto

// Run every thread of some blocks, in grids of so many, one after the other: blocks before
// `from`, and grids whose bit is in `absent`, do not run. A body gets its grid's number.
void run_blocks(void (*body)(const void* of, unsigned which), const void* of,
                unsigned blocks, unsigned grid, unsigned threads, unsigned from,
                unsigned absent);

template <class Calls>
void launch(void (*kernel)(const Calls), const Calls& calls, unsigned grid,
            unsigned threads, unsigned from) {
  struct Launch {
    void (*kernel)(const Calls);
    const Calls* calls;
  } const once{kernel, &calls};
  const auto body = [](const void* of, unsigned) {
    const Launch& it = *static_cast<const Launch*>(of);
    it.kernel(*it.calls);
  };
  run_blocks(body, &once, grid, grid, threads, from, 0);
}
