// emulate_own.hpp -- what channels and registered kernels use besides emulate.hpp.
struct Size {
  unsigned x;
};
inline thread_local Size blockDim{0};
inline void __syncthreads() { meet(0, blockDim.x, true); }
inline int __syncthreads_and(int mine) { return !meet(0, blockDim.x, true, !mine); }

namespace stretto {
struct alignas(16) Pair {
  u64 low, high;
};
struct Float16x2 {
  u32 bits;
};
struct BFloat16x2 {
  u32 bits;
};
// Two words, the second first.
inline Pair load_pair(const Pair* p) {
  const u64 high = load_relaxed_word(&p->high);
  return {load_relaxed_word(&p->low), high};
}
inline void store_pair(Pair* p, Pair v) {
  store_relaxed_word(&p->high, v.high);
  std::this_thread::yield();
  store_relaxed_word(&p->low, v.low);
}
template <class T>
void add_remote(T* p, T v) {
  std::atomic_ref<T>(*p).fetch_add(v, std::memory_order_relaxed);
}
}  // namespace stretto

// One launch of all ranks: `grid` blocks of each, with parameters of its own. Ranks in
// `absent`, and blocks before `from`, do not run.
template <class Kernel, class P>
void launch_ranks(Kernel kernel, const P* of, unsigned ranks, unsigned grid,
                  unsigned threads, unsigned absent, unsigned from = 0) {
  std::vector<Barriers> all(ranks * grid);
  std::vector<std::thread> running;
  for (unsigned b = 0; b < ranks * grid; ++b) {
    all[b][0];
    for (unsigned w = 0; w < 32; ++w) all[b][100 + w];
    if (b < from || absent >> (b / grid) & 1) continue;
    for (unsigned t = 0; t < threads; ++t) {
      running.emplace_back([&, b, t] {
        blockIdx.x = b % grid;
        threadIdx.x = t;
        blockDim.x = threads;
        barriers = &all[b];
        kernel(of[b / grid]);
      });
    }
  }
  for (std::thread& one : running) one.join();
}
