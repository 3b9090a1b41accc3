// emulate.hpp -- enough of CUDA to run a generated kernel on a CPU, a thread per thread.
//
// Accesses of 16 bytes are four relaxed atomics in an odd order, so whoever relies on more
// than whole words is found out. Every load gives way to other threads.
#include <math.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

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
inline thread_local Index threadIdx{0}, blockIdx{0};

inline std::atomic<bool> stuck{false};  // threads did not come where others waited

struct Barrier {
  std::mutex lock;
  std::condition_variable moved;
  unsigned count = 0, generation = 0;
  bool any = false, said = false;

  // Whoever waits in vain waits for threads that will never come: on a GPU for ever.
  bool arrive(unsigned total, bool waits, bool value) {
    std::unique_lock<std::mutex> held(lock);
    any |= value;
    const unsigned mine = generation;
    if (++count == total) {
      said = any;
      any = false;
      count = 0;
      ++generation;
      moved.notify_all();
    } else if (waits) {
      const auto come = [&] { return generation != mine || stuck; };
      if (!moved.wait_for(held, std::chrono::seconds(10), come)) {
        stuck.store(true);
        moved.notify_all();
      }
    }
    return said;
  }
};
using Barriers = std::map<int, Barrier>;
inline thread_local Barriers* barriers = nullptr;
inline bool meet(int id, unsigned total, bool waits, bool value = false) {
  return barriers->at(id).arrive(total, waits, value);
}

// What is shared by a block: one of each type.
template <class T>
struct InBlock {
  T value;  // T may be an array
};
template <class T>
T& of_a_block(Barriers* which) {
  static std::mutex lock;
  static std::map<Barriers*, InBlock<T>> all;
  std::lock_guard<std::mutex> held(lock);
  return all[which].value;
}
template <class T>
T& of_this_block() {
  return of_a_block<T>(barriers);
}

inline unsigned __float_as_uint(float f) {
  unsigned u;
  memcpy(&u, &f, 4);
  return u;
}
inline float __uint_as_float(unsigned u) {
  float f;
  memcpy(&f, &u, 4);
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
// Conversions, to nearest even.
inline float half(unsigned raw) {
  const unsigned short bits = raw;
  _Float16 h;
  memcpy(&h, &bits, 2);
  return h;
}
inline unsigned halves(float a, float b) {
  const _Float16 h[2] = {static_cast<_Float16>(a), static_cast<_Float16>(b)};
  unsigned w;
  memcpy(&w, h, 4);
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
T load_relaxed_word(const T* p) {
  std::this_thread::yield();
  return __atomic_load_n(p, __ATOMIC_RELAXED);
}
template <class T>
void store_relaxed_word(T* p, std::type_identity_t<T> v) {
  __atomic_store_n(p, v, __ATOMIC_RELAXED);
}
inline Vec load_relaxed(const Vec* p) {
  const u32* words = reinterpret_cast<const u32*>(p);
  u32 v[4];
  for (const int word : {3, 0, 2, 1}) v[word] = load_relaxed_word(words + word);
  return {v[0], v[1], v[2], v[3]};
}
inline void store_relaxed(Vec* p, Vec v) {
  u32* words = reinterpret_cast<u32*>(p);
  const u32 of[4] = {v.x, v.y, v.z, v.w};
  for (const int word : {2, 0, 1, 3}) {
    store_relaxed_word(words + word, of[word]);
    std::this_thread::yield();
  }
}
inline Vec load_plain(const Vec* p) { return *p; }
inline void store_plain(Vec* p, Vec v) { *p = v; }
inline void store_release(u64* p, u64 v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }
inline u64 load_acquire(const u64* p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
inline u64 take_number(u64* p) { return __atomic_fetch_add(p, 1, __ATOMIC_RELAXED); }
inline void fence() { std::atomic_thread_fence(std::memory_order_acq_rel); }
inline u64 clock_ns() {
  return std::chrono::steady_clock::now().time_since_epoch().count();
}
}  // namespace stretto

// Clusters: everybody arrives once a launch; words of other blocks are at the same place.
inline std::atomic<unsigned> arrived[1024];
inline unsigned in_cluster = 0, of_cluster = 1;  // threads, blocks
inline std::atomic<unsigned> ended[1024];  // threads of a block
inline std::atomic<unsigned> late = 0;     // words for blocks that had ended
namespace stretto {
inline void cluster_arrive() { ++arrived[blockIdx.x / of_cluster]; }
inline void cluster_arrive_relaxed() { cluster_arrive(); }
inline void cluster_wait() {
  while (arrived[blockIdx.x / of_cluster] % in_cluster) std::this_thread::yield();
}
template <u32 SHARE, class Board>
void tell_block(Board& board, u64& word, u32 block, u64 value) {
  Barriers* there = barriers - blockIdx.x % SHARE + block;
  late += ended[blockIdx.x - blockIdx.x % SHARE + block] == in_cluster / SHARE;
  const auto offset = reinterpret_cast<char*>(&word) - reinterpret_cast<char*>(&board);
  auto* base = reinterpret_cast<char*>(&of_a_block<Board>(there));
  __atomic_store_n(reinterpret_cast<u64*>(base + offset), value, __ATOMIC_RELAXED);
}
inline u64 told(const u64& word) {
  std::this_thread::yield();
  return __atomic_load_n(&word, __ATOMIC_RELAXED);
}
}  // namespace stretto

template <class Calls>
void launch(void (*kernel)(const Calls), const Calls& calls, unsigned grid,
            unsigned threads, unsigned from) {
  std::vector<Barriers> all(grid);
  for (Barriers& one : all) {
    one[1], one[2];
    for (unsigned w = 0; w < 32; ++w) one[100 + w];
  }
  in_cluster = of_cluster * threads;
  for (auto& one : arrived) one = 0;  // kernels of one process share it
  for (auto& one : ended) one = 0;
  late = 0;
  stuck = false;
  std::vector<std::thread> running;
  for (unsigned b = from; b < grid; ++b) {
    for (unsigned t = 0; t < threads; ++t) {
      running.emplace_back([&, b, t] {
        blockIdx.x = b;
        threadIdx.x = t;
        barriers = &all[b];
        kernel(calls);
        ++ended[b];
      });
    }
  }
  for (std::thread& one : running) one.join();
}
