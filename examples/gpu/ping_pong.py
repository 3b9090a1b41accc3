"""Two GPUs hand a buffer to and fro: by stores of a kernel.

python examples/gpu/ping_pong.py
"""

from __future__ import annotations

from typing import Any

import stretto

SOURCE = """
#include "channel.cuh"
using namespace stretto;

// Each round one rank writes new numbers and puts them, the other waits and compares.
extern "C" __global__ void ping_pong(const MemoryChannel* channels, int rounds,
                                     u32 nbytes, u64* wrong) {
  const int rank = channels->rank;
  if (rank > 1) return;
  const MemoryChannel& to = channels[1 - rank];
  const u32 words = nbytes / 8;
  u64* mine = reinterpret_cast<u64*>(to.local);
  const u64* theirs = mine + words;
  bool ok = true;
  for (int i = 0; i < rounds && ok; ++i) {
    if (i % 2 == rank) {
      for (u32 k = threadIdx.x; k < words; k += blockDim.x) mine[k] = 1000 * i + k;
      __syncthreads();
      to.put(nbytes, 0, nbytes, threadIdx.x, blockDim.x);
      __syncthreads();
      if (threadIdx.x == 0) to.signal();
    } else {
      if (threadIdx.x == 0) ok = to.wait(i);
      ok = __syncthreads_and(ok);
      for (u32 k = threadIdx.x; ok && k < words; k += blockDim.x) {
        if (load_relaxed_word(theirs + k) != 1000ull * i + k) wrong[0] = 1 + i;
      }
      __syncthreads();
    }
  }
  if (!ok) wrong[1] = 1;
}
"""


def play(comm: Any, nbytes: int, rounds: int) -> tuple[list[int], float]:
    """Return what went wrong, and the microseconds of one way."""
    import torch

    channels = comm.channels(2 * nbytes)
    kernel = channels.kernel(SOURCE, "ping_pong", threads=512)
    wrong = torch.zeros(2, dtype=torch.int64, device="cuda")
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(2):  # once to warm up
        torch.cuda.synchronize()
        comm.barrier()
        begin.record()
        kernel(channels.pointer, rounds, nbytes, wrong)
        end.record()
        torch.cuda.synchronize()
        comm.check()
    return wrong.tolist(), begin.elapsed_time(end) * 1e3 / rounds


def work(comm: stretto.Communicator) -> None:
    """Play at several sizes."""
    import torch

    torch.cuda.set_device(comm.rank)
    for nbytes in (1 << 10, 1 << 16, 1 << 22):
        wrong, us = play(comm, nbytes, 40)
        if comm.rank == 0:
            print(f"{nbytes:>8} bytes: {us:8.2f} us, wrong {wrong}")


def main() -> None:
    """Play on two GPUs."""
    stretto.spawn(work, num_ranks=2)


if __name__ == "__main__":
    main()
