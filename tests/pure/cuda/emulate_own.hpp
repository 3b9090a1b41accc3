// emulate_own.hpp -- what channels and registered kernels use besides emulate.hpp.
struct Size {
  unsigned x;
};
extern __thread Size blockDim;
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
inline Pair load_pair_acquire(const Pair* p) {
  const Pair v = load_pair(p);
  fence();
  return v;
}
inline void store_pair(Pair* p, Pair v) {
  store_relaxed_word(&p->high, v.high);
  sched_yield();
  store_relaxed_word(&p->low, v.low);
}
template <class T>
void add_remote(T* p, T v) {
  T was = *p, sum;
  do {
    sum = was + v;
  } while (!__atomic_compare_exchange(p, &was, &sum, false, __ATOMIC_RELAXED,
                                      __ATOMIC_RELAXED));
}
}  // namespace stretto

// One launch of all ranks: `grid` blocks of each, with parameters of its own. Ranks in
// `absent`, and blocks before `from`, do not run.
template <class Kernel, class P>
void launch_ranks(Kernel kernel, const P* of, unsigned ranks, unsigned grid,
                  unsigned threads, unsigned absent, unsigned from = 0) {
  struct Launch {
    Kernel kernel;
    const P* of;
  } const once{kernel, of};
  const auto body = [](const void* given, unsigned rank) {
    const Launch& it = *static_cast<const Launch*>(given);
    it.kernel(it.of[rank]);
  };
  run_blocks(body, &once, ranks * grid, grid, threads, from, absent);
}
