"""Checks of calls: graphs, streams, what a launch costs, a soak, channels."""

from __future__ import annotations

import ctypes
import struct
import time
from collections.abc import Sequence
from typing import Any

from ranked import DEADLINE_S, Bound, Rank, check, verdict

from stretto.executors.cuda.codegen.abi import Kernel
from stretto.executors.cuda.codegen.compile import compile_kernel
from stretto.executors.cuda.device.driver import api, ask
from stretto.executors.cuda.launching.kernels import enqueue, load


@check(4)
def slab(r: Rank) -> Any:
    """Peers see what is written; offsets agree; the slab grows."""
    r.open()
    one = r.session.empty((1000,), "uint8")
    two = r.session.empty((200 << 20,), "uint8") if r.session.slab.can_grow else one
    offsets = (r.session.offset(one), r.session.offset(two))
    mine = [r.torch.from_dlpack(a) for a in (one, two)]
    for t in mine:
        t.fill_(r.rank + 1)
    r.together()
    local = r.torch.empty(1000, dtype=r.torch.uint8, device="cuda")
    for q in range(r.n):
        for offset in offsets:
            source = r.session.space.peer_address(q, offset)
            ask("cuMemcpyDtoD", local.data_ptr(), source, 1000)
            assert bool((local == q + 1).all()), f"rank {q} at {offset} is not seen"
    said = [m for m, _ in r.group.exchange({"offsets": offsets})]
    assert all(tuple(m["offsets"]) == offsets for m in said), said
    return {
        "kind": r.session.slab.kind,
        "offsets": offsets,
        "gpu": r.session.device.name,
    }


def _graphs(r: Rank, schedules: Sequence[tuple[str, str, int]], rounds: int) -> Any:
    r.open()
    torch = r.torch
    found: list[str] = []
    bounds = [Bound(r, *one) for one in schedules]
    graphs = []
    for bound in bounds:
        bound.fill(0)
        r.together()
        bound()
        r.together()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            bound()
        graphs.append(graph)
    r.together()
    for seed in range(rounds):
        for index, bound in enumerate(bounds):
            want = bound.fill(seed)
            r.together()
            bound() if (seed + index) % 3 == 0 else graphs[index].replay()
            torch.cuda.synchronize()
            r.session.check()
            found.append(bound.wrong(want))
    for _ in range(50):  # back to back, mixed, nothing between
        for bound, graph in zip(bounds, graphs, strict=True):
            graph.replay()
            bound()
            graph.replay()
    torch.cuda.synchronize()
    r.session.check()
    return verdict(found)


@check(8)
def graphs(r: Rank) -> Any:
    """Two graphs in turn, replayed on fresh data, mixed with eager calls."""
    cases = [
        ("all_reduce/one_shot", "push packets staged blocks=2 threads=256", 5001),
        ("all_reduce/two_shot", "push bulk staged blocks=4 threads=256", 70001),
        ("all_gather/one_shot", "push bulk zero_copy blocks=4 threads=256", 5001),
    ]
    return _graphs(r, cases, 6 if r.shared else 30)


@check(6)
def engine_graphs(r: Rank) -> Any:
    """Copy engines in graphs."""
    cases = [
        ("all_gather/one_shot", "push engine zero_copy blocks=3", 70001),
        ("all_to_all/one_shot", "push engine zero_copy blocks=1", 5001),
    ]
    return _graphs(r, cases, 10)


@check(4)
def streams(r: Rank) -> Any:
    """The first streams have flags of their own; a fifth one shares a set."""
    r.open()
    torch = r.torch
    bounds = [
        Bound(r, "all_reduce/one_shot", "push packets staged blocks=2 threads=256", c)
        for c in (1000, 2000)
    ]
    several = [torch.cuda.Stream() for _ in range(5)]
    found = []
    for seed in range(5):
        wants = [b.fill(seed) for b in bounds]
        r.together()
        for _ in range(3):
            for bound, stream in zip(bounds, several, strict=False):
                bound(stream=stream)
        torch.cuda.synchronize()
        r.session.check()
        found += [b.wrong(w) for b, w in zip(bounds, wants, strict=True)]
    want = bounds[0].fill(9)
    r.together()
    for stream in several[2:]:  # more than have flags of their own: they take turns
        bounds[0](stream=stream)
    torch.cuda.synchronize()
    r.session.check()
    found.append(bounds[0].wrong(want))
    return verdict(found)


LEAST_CALLS = 1_000_000
"""Of the soak, where every rank has a GPU."""
PING_PONG = """
#include "channel.cuh"
using namespace stretto;
struct P { const MemoryChannel* channels; u64* out; int rank; int rounds; };
extern "C" __global__ void stretto_kernel(const __grid_constant__ P p) {
  if (p.rank > 1) return;
  const MemoryChannel& to = p.channels[1 - p.rank];
  __shared__ bool ok;
  if (threadIdx.x == 0) ok = true;
  __syncthreads();
  for (int i = 0; i < p.rounds && ok; ++i) {
    if (i % 2 == p.rank) {
      u64* mine = reinterpret_cast<u64*>(to.local);
      for (u32 k = threadIdx.x; k < 512; k += blockDim.x) mine[k] = i * 1000 + k;
      __syncthreads();
      to.put(4096, 0, 4096, threadIdx.x, blockDim.x);
      __syncthreads();
      if (threadIdx.x == 0) to.signal();
    } else {
      if (threadIdx.x == 0) ok = to.wait();
      __syncthreads();
      const u64* got = reinterpret_cast<const u64*>(to.local + 4096);
      for (u32 k = threadIdx.x; ok && k < 512; k += blockDim.x) {
        const u64 want = i * 1000 + k;
        if (load_relaxed_word(got + k) != want) p.out[0] = 1 + i;
      }
      __syncthreads();
    }
  }
  if (threadIdx.x == 0 && !ok) p.out[0] = 99;
}
"""
ALL_REDUCE = """
#include "channel.cuh"
using namespace stretto;
struct P { const MemoryChannel* channels; u64* out; int rank; int ranks; u32 flag; };
extern "C" __global__ void stretto_kernel(const __grid_constant__ P p) {
  const u64 mine = 10 * p.rank + threadIdx.x;
  const u64 at = 8192 + (p.flag & 1) * 65536;
  for (int i = 1; i < p.ranks; ++i) {
    const MemoryChannel& to = p.channels[(p.rank + i) % p.ranks];
    to.put_packet(at, p.rank * blockDim.x + threadIdx.x, mine, p.flag);
  }
  u64 sum = 0;
  for (int q = 0; q < p.ranks; ++q) {
    u64 value = mine;
    const u64 index = q * blockDim.x + threadIdx.x;
    if (q != p.rank && !p.channels[q].read_packet(at, index, p.flag, value)) return;
    sum += value;
  }
  p.out[1 + threadIdx.x] = sum;
}
"""


def _own_kernel(r: Rank, text: str, threads: int) -> Any:
    kernel = Kernel(text=text, ranks=(r.rank,), grid=1, threads=threads)
    image = compile_kernel(kernel, arch=r.session.device.arch)
    return load(r.session.device, kernel, image)


@check(6)
def channels(r: Rank) -> Any:
    """Kernels written by hand: ping-pong by signals, all_reduce by packets."""
    r.open(DEADLINE_S)
    made = r.session.channels(1 << 20)
    out = r.torch.zeros(1024, dtype=r.torch.int64, device="cuda")
    kernels = _own_kernel(r, PING_PONG, 128), _own_kernel(r, ALL_REDUCE, 64)
    stream = api().CUstream(r.torch.cuda.current_stream().cuda_stream)
    r.together()
    found = []

    def launch(loaded: Any, packed: bytes) -> None:
        raw = ctypes.create_string_buffer(packed, len(packed))
        array = (ctypes.c_void_p * 1)(ctypes.addressof(raw))
        enqueue(r.session.device, loaded, stream, ctypes.addressof(array))

    head = struct.pack("<QQi", made.pointer, out.data_ptr(), r.rank)
    for _ in range(3):
        launch(kernels[0], head + struct.pack("<i", 20))
    r.together()
    r.session.check()
    found.append("" if out[0].item() == 0 else f"ping-pong said {out[0].item()}")
    for flag in range(1, 6):
        launch(kernels[1], head + struct.pack("<iIi", r.n, flag, 0))
    r.together()
    r.session.check()
    want = [sum(10 * q + t for q in range(r.n)) for t in range(64)]
    got = out[1:65].tolist()
    found.append("" if got == want else f"all_reduce: {got[:4]}, want {want[:4]}")
    return verdict(found)


@check(5)
def launch_cost(r: Rank) -> Any:
    """How much processor time a launch takes, and a call end to end."""
    r.open()
    torch = r.torch
    bound = Bound(
        r, "all_reduce/one_shot", "push packets staged blocks=1 threads=128", 512
    )
    bound.fill(0)
    r.together()
    for _ in range(100):
        bound()
    r.together()
    answer = {}
    stream = torch.cuda.current_stream().cuda_stream
    for label, how in (("torch_stream", {}), ("given_stream", {"stream": stream})):
        issue, total = [], []
        for _ in range(5):
            r.together()
            began = time.perf_counter()
            for _ in range(500):
                bound(**how)
            issued = time.perf_counter()
            torch.cuda.synchronize()
            issue.append((issued - began) / 500 * 1e6)
            total.append((time.perf_counter() - began) / 500 * 1e6)
        answer[label] = {
            "issue_us": round(sorted(issue)[2], 2),
            "total_us": round(sorted(total)[2], 2),
        }
    return answer


@check(18)
def soak(r: Rank) -> Any:
    """Many small calls, eager and replayed, with a check of values now and then."""
    r.open()
    torch = r.torch
    seconds, least = (3.0, 0) if r.shared else (8.0, LEAST_CALLS)
    names = ["all_reduce/one_shot", "all_reduce/two_shot", "all_gather/one_shot"]
    schedule = "push packets staged blocks=2 threads=256"
    bounds = [Bound(r, name, schedule, 600 + 7 * i) for i, name in enumerate(names)]
    wants = [b.fill(i) for i, b in enumerate(bounds)]
    r.together()
    for bound in bounds:
        bound()
    r.together()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(100):
            for bound in bounds:
                bound()
    calls, began, found = 0, time.monotonic(), []
    batch = 1 if r.shared else 20
    while True:
        for _ in range(batch):
            graph.replay()
            for bound in bounds:
                bound()
        calls += batch * 303
        torch.cuda.synchronize()
        r.session.check()
        found += [b.wrong(w) for b, w in zip(bounds, wants, strict=True)]
        for b in bounds:
            b.out.fill_(0xA5)
        said = [m for m, _ in r.group.exchange({"t": time.monotonic() - began})]
        took = max(m["t"] for m in said)
        if took > 15 or (took > seconds and calls >= least):
            assert calls >= least, f"{calls} calls in {took:.1f} s; want {least}"
            return {**verdict(found), "calls": calls}
