"""Checks of channels in CUDA C++: signals, puts, packets, atomic adds."""

from __future__ import annotations

from typing import Any

from channel_rank import Rank, check, example


@check
def ping_pong(r: Rank) -> Any:
    """Signals and puts, by stores; the example's kernel."""
    module, comm = example("gpu/ping_pong"), r.open()
    answer = {}
    for nbytes in (1 << 10, 1 << 20):
        wrong, us = module.play(comm, nbytes, 6 if r.share else 100)
        assert wrong == [0, 0], f"{nbytes} bytes: {wrong}"
        answer[f"{nbytes}_us"] = round(us, 2)
    return answer


PACKETS = """
#include "channel.cuh"
using namespace stretto;
extern "C" __global__ void packets(const MemoryChannel* channels, u64* out, int ranks) {
  const MemoryChannel* mine = channels + blockIdx.x * ranks;
  const int rank = mine->rank;
  const u64 epoch = mine[rank].epoch(), i = blockIdx.x * blockDim.x + threadIdx.x;
  const u64 set = (epoch & 1) * (1 << 19), all = gridDim.x * blockDim.x;
  const u64 value = 100 * rank + i + (epoch << 32);
  for (int k = 1; k < ranks; ++k) {
    mine[(rank + k) % ranks].put_packet(set, rank * all + i, value, epoch);
  }
  u64 sum = 0;
  for (int q = 0; q < ranks; ++q) {
    u64 part = value;
    if (q != rank) mine[q].read_packet(set, q * all + i, epoch, part);
    sum += part;
  }
  out[i] = sum;
  __syncthreads();
  if (threadIdx.x == 0) mine[rank].end_call();
}
"""


@check
def packets(r: Rank) -> Any:
    """Packets with epochs as flags: eager, then a graph that is replayed."""
    comm, torch, n = r.open(), r.torch, r.n
    made = comm.channels(1 << 20, blocks=2)
    kernel = made.kernel(PACKETS, "packets", threads=256)
    out, index = r.zeros(512), torch.arange(512, device="cuda")

    def due(call: int) -> Any:
        return 100 * (n * (n - 1) // 2) + n * index + n * (call << 32)

    r.together()
    for call in range(1, 6):
        kernel(made.pointer, out, n)
        r.together()
        comm.check()
        assert torch.equal(out, due(call)), f"call {call}: {out[:4]}"
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(3):
            kernel(made.pointer, out, n)
    r.together()
    for turn in range(4):
        graph.replay()
        kernel(made.pointer, out, n)
        r.together()
        comm.check()
        assert torch.equal(out, due(5 + 4 * (turn + 1))), f"replay {turn}: {out[:4]}"
    return {"calls": 21}


ADD = """
#include "channel.cuh"
using namespace stretto;
extern "C" __global__ void add(const MemoryChannel* channels, int ranks) {
  const int rank = channels->rank;
  for (int q = 0; q < ranks; ++q) {
    channels[q].add(4 * threadIdx.x, 1.0f + rank);
    channels[q].add<u32>(4096 + 4 * threadIdx.x, 1u << rank);
    channels[q].add<u64>(8192 + 8 * threadIdx.x, 1ull << (8 * rank));
    channels[q].add(16384 + 4 * threadIdx.x, Float16x2{0x3c003c00});   // 1, 1
    channels[q].add(20480 + 4 * threadIdx.x, BFloat16x2{0x3f803f80});  // 1, 1
    channels[q].add(24576 + 8 * threadIdx.x, 0.5);
  }
  __syncthreads();
  if (threadIdx.x < ranks && threadIdx.x != rank) {
    channels[threadIdx.x].signal();
    channels[threadIdx.x].wait();
  }
}
"""


@check
def remote_add(r: Rank) -> Any:
    """Everybody adds to everybody's memory, in six types."""
    comm, torch, n = r.open(), r.torch, r.n
    made = comm.channels(1 << 15)
    kernel = made.kernel(ADD, "add", threads=128)
    r.together()
    kernel(made.pointer, n)
    r.together()
    comm.check()
    whole = torch.from_dlpack(made.buffer)

    def seen(start: int, dtype: Any, count: int) -> Any:
        size = torch.empty((), dtype=dtype).element_size()
        return whole[start : start + count * size].view(dtype).cpu()

    found = {
        "float32": (seen(0, torch.float32, 128), n * (n + 1) / 2),
        "uint32": (seen(4096, torch.int32, 128), (1 << n) - 1),
        "uint64": (seen(8192, torch.int64, 128), sum(1 << 8 * q for q in range(n))),
        "float16": (seen(16384, torch.float16, 256), n),
        "bfloat16": (seen(20480, torch.bfloat16, 256), n),
        "float64": (seen(24576, torch.float64, 128), n / 2),
    }
    for name, (got, want) in found.items():
        assert bool((got == want).all()), f"{name}: {got[:4]}, want {want}"
    return sorted(found)
