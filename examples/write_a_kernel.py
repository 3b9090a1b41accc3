"""Write a GPU kernel by hand and register it under a catalogue name.

The function says what the kernel computes, and is proved like any algorithm. On GPUs
the kernel runs; on CPUs, and for calls that it does not take, the program does.

    python examples/write_a_kernel.py          # on this machine's CPUs
    torchrun --nproc-per-node 4 examples/write_a_kernel.py  # a GPU each
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

import stretto

SOURCE = """
// Everybody sends its vector to everybody as packets, and adds in rank order.
template <class Task>
__device__ void one_hop(Task& task) {
  using Element = typename Task::Element;
  using Operator = typename Task::Operator;
  constexpr u32 ranks = Task::ranks, rank = Task::rank;
  const u64 room = task.cells() * 16;  // one sender's packets
  const u32 first = task.block * Task::threads + task.thread;
  const u32 stride = Task::blocks * Task::threads;

  u32 call = 0;
  for (u32 cell = first; cell < task.cells(); cell += stride, ++call) {
    const Vec mine = task.load_cell(task.input(), cell);
#pragma unroll
    for (u32 i = 1; i < ranks; ++i) {
      task.put_packet((rank + i) % ranks, rank * room, cell, call, mine);
    }
  }
  call = 0;
  for (u32 cell = first; cell < task.cells(); cell += stride, ++call) {
    Vec parts[ranks];
#pragma unroll
    for (u32 q = 0; q < ranks; ++q) {
      if (q == rank) {
        parts[q] = task.load_cell(task.input(), cell);
      } else {
        task.read_packet(q, q * room, cell, call, parts[q]);
      }
    }
    const Vec sum = combine<Element, Operator, ranks>(parts);
    task.store_cell(task.output(), cell, finish<Element, Operator, ranks>(sum));
  }
}
"""


def packets(nbytes: int, num_ranks: int, blocks: int) -> int:
    """Return the packet memory of a rank: a vector from everybody."""
    return num_ranks * (-(-nbytes // 16) * 16)


@stretto.kernel(
    "all_reduce/one_hop",
    source=SOURCE,
    ops=("sum", "avg", "min", "max"),
    most_bytes=256 << 10,
    packets=packets,
    schedule="packets blocks=4 threads=256",
)
def one_hop(ranks: Any) -> None:
    """Everyone reads everyone and adds in rank order, by hand on GPUs."""
    for r in ranks:
        r.output[:] = stretto.reduce(q.input[:] for q in ranks)


def work(comm: stretto.Communicator) -> list[float]:
    """Add up ones with the registered kernel, by its name."""
    x: Any = np.ones(1000, np.float32)
    if "RANK" in os.environ:
        import torch

        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        x = torch.from_numpy(x).cuda()
    comm.all_reduce(x, algorithm="all_reduce/one_hop")
    return [float(v) for v in x[:3]]


def main() -> None:
    """Run on the ranks of a launcher, or on three processes of this machine."""
    if "RANK" in os.environ:
        with stretto.connect() as comm:
            print(comm.rank, work(comm))
        return
    print(stretto.spawn(work, num_ranks=3))


if __name__ == "__main__":
    main()
