// emulate.cpp -- what emulate.hpp only declares: threads, barriers, what blocks share.
#include "emulate.hpp"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

struct Size {
  unsigned x;
};
__thread Index threadIdx{0}, blockIdx{0};
__thread Size blockDim{0};
__thread Block* block_here = nullptr;
unsigned of_cluster = 1;

namespace {
std::atomic<bool> stuck{false};
std::atomic<unsigned> late{0};
std::atomic<unsigned> arrived[1024];  // threads of a cluster
unsigned in_cluster = 0;

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

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};
}  // namespace

struct Block {
  std::map<int, Barrier> barriers;
  std::mutex lock;
  std::map<const void*, std::unique_ptr<void, Free>> shared;
  std::atomic<unsigned> ended{0};  // threads
  unsigned threads = 0;
};

bool meet(int id, unsigned total, bool waits, bool value) {
  return block_here->barriers.at(id).arrive(total, waits, value);
}
bool is_stuck() { return stuck; }
unsigned late_words() { return late; }

// Memory that a block shares begins as anything: here, as no value that a kernel writes.
void* shared_by(Block* block, const void* kind, unsigned long size) {
  std::lock_guard<std::mutex> held(block->lock);
  auto& memory = block->shared[kind];
  if (!memory) {
    memory.reset(std::aligned_alloc(128, (size + 127) / 128 * 128));
    memset(memory.get(), 0xA5, size);
  }
  return memory.get();
}

Block* told_block(int after) {
  Block* there = block_here + after;
  late += there->ended == there->threads;
  return there;
}

namespace stretto {
u64 clock_ns() { return std::chrono::steady_clock::now().time_since_epoch().count(); }
void cluster_arrive() { ++arrived[blockIdx.x / of_cluster]; }
void cluster_wait() {
  while (arrived[blockIdx.x / of_cluster] % in_cluster) sched_yield();
}
}  // namespace stretto

void run_blocks(void (*body)(const void* of, unsigned which), const void* of,
                unsigned blocks, unsigned grid, unsigned threads, unsigned from,
                unsigned absent) {
  std::vector<Block> all(blocks);
  for (Block& one : all) {
    one.threads = threads;
    for (const int id : {0, 1, 2}) one.barriers[id];
    for (unsigned w = 0; w < 32; ++w) one.barriers[100 + w];
  }
  in_cluster = of_cluster * threads;
  for (auto& one : arrived) one = 0;  // kernels of one process share it
  late = 0;
  stuck = false;
  std::vector<std::thread> running;
  for (unsigned b = from; b < blocks; ++b) {
    if (absent >> (b / grid) & 1) continue;
    for (unsigned t = 0; t < threads; ++t) {
      running.emplace_back([=, &all] {
        blockIdx.x = b % grid;
        threadIdx.x = t;
        blockDim.x = threads;
        block_here = &all[b];
        body(of, b / grid);
        ++all[b].ended;
      });
    }
  }
  for (std::thread& one : running) one.join();
}
