// steps.cuh -- when its steps happened, written by the kernel itself, if its text asks.
//
// `STRETTO_STEPS`, defined before the headers, makes the variant that writes; without it
// a diary is empty and costs nothing. Thread 0 of a lane writes, of the first blocks
// alone: the others do the same on slices of their own. Times are the device's clock.
// A worker has a ring of records; its count says how many it has ever written, and is
// stored last. What a step waits for others is the time of its polls.
#pragma once

#include "abi.cuh"

#ifdef STRETTO_STEPS

extern "C" {
__device__ stretto::u64 stretto_steps;  // counts, then records; 0: nowhere
}

namespace stretto {

struct Diary {
  u64* count = nullptr;  // nullptr: this thread writes nothing
  StepRecord* records = nullptr;
  u64 what = 0, epoch = 0, control = 0, written = 0;
  u64 entered = 0, began = 0, polls = 0, waited = 0, waited_in_all = 0;

  // The lane has entered: what came before it on the stream is complete.
  __device__ __forceinline__ void open(u64 control_, u32 fingerprint, u64 epoch_,
                                       u32 block, u32 lane, u32 thread) {
    const u64 base = *reinterpret_cast<volatile u64*>(&stretto_steps);
    if (thread != 0 || block >= STEP_BLOCKS || base == 0) return;
    const u32 worker = block * MAX_LANES + lane;
    count = reinterpret_cast<u64*>(base) + worker;
    records = reinterpret_cast<StepRecord*>(base + 8 * STEP_WORKERS) +
              static_cast<u64>(worker) * STEP_RECORDS;
    what = fingerprint | static_cast<u64>(worker) << 48;
    epoch = epoch_;
    control = control_;
    written = load_relaxed_word(count);
    entered = began = clock_ns();
  }
  __device__ __forceinline__ void begin_wait() {
    if (count != nullptr) polls = clock_ns();
  }
  __device__ __forceinline__ void end_wait() {
    if (count != nullptr) waited += clock_ns() - polls;
  }
  __device__ __forceinline__ void end_step(u32 step, u64 now_epoch) {
    if (count == nullptr) return;
    const u64 now = clock_ns();
    write(step, now_epoch - epoch, began, waited, now);
    waited_in_all += waited;
    began = now;
    waited = 0;
  }
  __device__ __forceinline__ void close() {
    if (count == nullptr) return;
    write(WHOLE_CALL, 0, entered, waited_in_all, clock_ns());
    store_release(count, written);
  }

 private:
  __device__ __forceinline__ void write(u32 step, u64 tile, u64 from, u64 wait,
                                        u64 to) {
    StepRecord* one = records + written++ % STEP_RECORDS;
    store_relaxed_word(&one->what, what | static_cast<u64>(step & 0xffff) << 32);
    store_relaxed_word(&one->epoch, epoch);
    store_relaxed_word(&one->control, control);
    store_relaxed_word(&one->tile, tile);
    store_relaxed_word(&one->begin, from);
    store_relaxed_word(&one->wait, wait);
    store_relaxed_word(&one->end, to);
  }
};

}  // namespace stretto

#else

namespace stretto {

struct Diary {
  __device__ __forceinline__ void open(u64, u32, u64, u32, u32, u32) {}
  __device__ __forceinline__ void begin_wait() {}
  __device__ __forceinline__ void end_wait() {}
  __device__ __forceinline__ void end_step(u32, u64) {}
  __device__ __forceinline__ void close() {}
};

}  // namespace stretto

#endif
