"""A matrix product whose tiles are all-reduced as they finish, in one kernel.

Every rank has a slice of K: C is the sum over ranks of A_r B_r. A block computes one
tile, sends it to every peer at once, and adds what the peers send, in rank order, while
other blocks still compute. (The product itself is kept simple: no tensor cores.)

    python examples/gpu/matmul_all_reduce.py
"""

from __future__ import annotations

from typing import Any

import stretto

TILE = 64

SOURCE = """
#include "channel.cuh"
using namespace stretto;

constexpr int TILE = 64;  // a side of a tile of C
constexpr int DEEP = 16;  // what of K is in shared memory at once

// Sizes are multiples of TILE (m, n) and DEEP (k). One block a tile, 16 x 16 threads of
// 4 x 4 numbers each; a channel for each block and peer: tiles wait for no other tile.
extern "C" __global__ void __launch_bounds__(256)
matmul_all_reduce(const MemoryChannel* channels, const float* a, const float* b,
                  float* c, int n, int k, int ranks) {
  __shared__ float left[DEEP][TILE + 1], right[DEEP][TILE];
  const int y = threadIdx.x / 16, x = threadIdx.x % 16, across = n / TILE;
  const int row = static_cast<int>(blockIdx.x) / across * TILE;
  const int column = static_cast<int>(blockIdx.x) % across * TILE;

  float sum[4][4] = {};
  for (int d = 0; d < k; d += DEEP) {
    for (int i = threadIdx.x; i < TILE * DEEP; i += 256) {
      left[i % DEEP][i / DEEP] = a[(row + i / DEEP) * k + d + i % DEEP];
      right[i / TILE][i % TILE] = b[(d + i / TILE) * n + column + i % TILE];
    }
    __syncthreads();
#pragma unroll
    for (int e = 0; e < DEEP; ++e) {
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        sum[i / 4][i % 4] += left[e][4 * y + i / 4] * right[e][4 * x + i % 4];
      }
    }
    __syncthreads();
  }

  // Two sets of slots, by epoch: whoever starts call e + 2 has heard from all of e + 1.
  const MemoryChannel* mine = channels + blockIdx.x * ranks;
  const int rank = mine->rank;
  const u64 epoch = mine[rank].epoch();
  const u64 tile_bytes = TILE * TILE * sizeof(float);
  const u64 set = (epoch & 1) * ranks * gridDim.x * tile_bytes;
  for (int i = 1; i < ranks; ++i) {
    const MemoryChannel& to = mine[(rank + i) % ranks];
    const u64 slot = set + (rank * gridDim.x + blockIdx.x) * tile_bytes;
    Vec* there = reinterpret_cast<Vec*>(to.remote + slot);
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      store_relaxed(there + (4 * y + r) * 16 + x,
                    {__float_as_uint(sum[r][0]), __float_as_uint(sum[r][1]),
                     __float_as_uint(sum[r][2]), __float_as_uint(sum[r][3])});
    }
  }
  __syncthreads();
  bool ok = true;
  if (threadIdx.x < ranks && threadIdx.x != rank) {
    mine[threadIdx.x].signal();
    ok = mine[threadIdx.x].wait();
  }
  if (!__syncthreads_and(ok)) return;

#pragma unroll
  for (int r = 0; r < 4; ++r) {
    float total[4] = {};
    for (int q = 0; q < ranks; ++q) {
      const u64 slot = set + (q * gridDim.x + blockIdx.x) * tile_bytes;
      const Vec* here = reinterpret_cast<const Vec*>(mine->local + slot);
      const Vec v = q == rank ? Vec{} : load_relaxed(here + (4 * y + r) * 16 + x);
      total[0] += q == rank ? sum[r][0] : __uint_as_float(v.x);
      total[1] += q == rank ? sum[r][1] : __uint_as_float(v.y);
      total[2] += q == rank ? sum[r][2] : __uint_as_float(v.z);
      total[3] += q == rank ? sum[r][3] : __uint_as_float(v.w);
    }
    float* to = c + (row + 4 * y + r) * n + column + 4 * x;
    for (int i = 0; i < 4; ++i) to[i] = total[i];
  }
  __syncthreads();
  if (threadIdx.x == 0) mine[rank].end_call();
}
"""


class MatmulAllReduce:
    """C = sum over ranks of A_r B_r, for one shape."""

    def __init__(self, comm: Any, m: int, n: int) -> None:
        """Make channels and the kernel (collective)."""
        assert m % TILE == n % TILE == 0, "whole tiles"
        tiles = m // TILE * (n // TILE)
        room = 2 * comm.num_ranks * tiles * TILE * TILE * 4
        self.channels = comm.channels(room, blocks=tiles)
        self.kernel = self.channels.kernel(SOURCE, "matmul_all_reduce", threads=256)
        self.ranks, self.n = comm.num_ranks, n

    def __call__(self, a: Any, b: Any, c: Any) -> None:
        """Enqueue it on the current stream."""
        k = a.shape[1]
        self.kernel(self.channels.pointer, a, b, c, self.n, k, self.ranks)


def work(comm: stretto.Communicator) -> float:
    """Return the largest difference from a product, then a sum."""
    import torch

    torch.cuda.set_device(comm.rank)
    m, n, k = 256, 512, 512
    whole = torch.Generator("cuda").manual_seed(comm.rank)
    a = torch.randn(m, k, device="cuda", generator=whole)
    b = torch.randn(k, n, device="cuda", generator=whole)
    c = torch.empty(m, n, device="cuda")
    fused = MatmulAllReduce(comm, m, n)
    for _ in range(3):
        fused(a, b, c)
    want = a @ b
    comm.all_reduce(want)
    torch.cuda.synchronize()
    comm.check()
    return float((c - want).abs().max())


def main() -> None:
    """Run on all GPUs of this machine."""
    import torch

    print(stretto.spawn(work, num_ranks=torch.cuda.device_count()))


if __name__ == "__main__":
    main()
