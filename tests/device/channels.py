"""Kernels of one's own on GPUs: channels, copy engines, Triton, registered kernels.

    python tests/device/channels.py --ranks 4 --out DIR [--share] [--only WORDS]

Ranks are processes that `stretto.spawn` starts. Each check has a communicator of its
own, so that one which fails, or tests a fault, does not keep the next from running.
`--share` puts all ranks on one GPU, where kernels take turns: slow, and enough to test
what is said.
"""

# ruff: noqa: T201  (a program: it prints its report)

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "src"))
os.environ["PYTHONPATH"] = f"{ROOT / 'src'}:{os.environ.get('PYTHONPATH', '')}"

Check = Callable[["Rank"], Any]
CHECKS: dict[str, Check] = {}
DEADLINE_S = 15.0
SHORT_S = 2.0


def check(function: Check) -> Check:
    """Register a check under its name."""
    CHECKS[function.__name__] = function
    return function


def example(name: str) -> Any:
    """Return the module of an example."""
    found = sys.modules.get(name)
    if found is None:
        path = ROOT / "examples" / f"{name}.py"
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None, path
        assert spec.loader is not None, path
        found = importlib.util.module_from_spec(spec)
        sys.modules[name] = found
        spec.loader.exec_module(found)
    return found


class Rank:
    """What a check is given: a communicator, torch, and how it is run."""

    def __init__(self, world: Any, torch: Any, share: bool) -> None:
        self.world, self.torch, self.share = world, torch, share
        self.rank, self.n = world.rank, world.num_ranks
        self.comm: Any = None

    def open(self, deadline_s: float = DEADLINE_S) -> Any:
        """Return a communicator for a check (collective)."""
        self.comm = self.world.split(0, deadline_s=deadline_s)
        return self.comm

    def together(self) -> None:
        """Wait for all ranks, GPUs included."""
        self.torch.cuda.synchronize()
        self.world.barrier()

    def zeros(self, count: int, dtype: Any = None) -> Any:
        """Return zeros on the GPU, 64-bit integers unless said otherwise."""
        dtype = dtype or self.torch.int64
        return self.torch.zeros(count, dtype=dtype, device="cuda")


@check
def ping_pong(r: Rank) -> Any:
    """Signals and puts, by stores; the example's kernel."""
    return _played(r, "memory", (1 << 10, 1 << 20))


@check
def ping_pong_engine(r: Rank) -> Any:
    """The same by a copy engine that the kernel asks: put, signal, wait, flush."""
    return _played(r, "engine", (1 << 10, 1 << 20))


def _played(r: Rank, kind: str, sizes: tuple[int, ...]) -> Any:
    module, comm = example("gpu/ping_pong"), r.open()
    answer = {}
    for nbytes in sizes:
        wrong, us = module.play(comm, nbytes, 6 if r.share else 100, kind)
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


LINES = """
#include "channel.cuh"
using namespace stretto;
// Everybody sends blockDim.x / 8 lines to the next rank, and compares what comes.
extern "C" __global__ void lines(const MemoryChannel* channels, u64* wrong, int ranks) {
  const int rank = channels->rank;
  const MemoryChannel& to = channels[(rank + 1) % ranks];
  const MemoryChannel& from = channels[(rank + ranks - 1) % ranks];
  const u64 epoch = channels[rank].epoch(), set = (epoch & 1) * (1 << 17);
  const u32 cell = blockIdx.x * blockDim.x + threadIdx.x;
  auto value = [&](int q) {
    const u32 word = static_cast<u32>(epoch) * 7919 + q * 104729 + cell;
    return Vec{word, word + 1, word + 2, word + 3};
  };
  to.put_line(set, cell, value(rank), epoch);
  Vec got;
  if (!from.read_line(set, cell, epoch, got)) wrong[1] = 1;
  const Vec due = value(from.peer);
  bool same = got.x == due.x && got.y == due.y;
  if (cell % 8 != 7) same = same && got.z == due.z && got.w == due.w;
  if (!same) wrong[0] = cell + 1;
  // A line's writer hears from its reader, so that two sets suffice.
  __syncthreads();
  if (threadIdx.x == 0) {
    from.signal();
    if (!to.wait()) wrong[1] = 2;
    channels[rank].end_call();
  }
}
"""


@check
def lines(r: Rank) -> Any:
    """128-byte lines to the next rank, many times."""
    comm = r.open()
    made, wrong = comm.channels(1 << 18), r.zeros(2)
    kernel = made.kernel(LINES, "lines", threads=512)
    r.together()
    calls = 10 if r.share else 500
    for _ in range(calls):
        kernel(made.pointer, wrong, r.n)
    r.together()
    comm.check()
    assert wrong.tolist() == [0, 0], wrong.tolist()
    return {"calls": calls}


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


def _fails(r: Rank, what: Callable[[], None]) -> str:
    """Return what is raised, by the call or soon after it, on a usable device."""
    from stretto.errors import CommunicationError

    began = time.monotonic()
    text = ""
    try:
        what()
        r.torch.cuda.synchronize()
        while time.monotonic() - began < 3 * SHORT_S + 2:
            r.comm.check()
            time.sleep(0.02)
    except CommunicationError as e:
        text = f"{type(e).__name__}: {e}"
    assert text, "nothing was raised"
    assert r.torch.ones(1000, device="cuda").sum().item() == 1000, "the device is gone"
    return text


WAIT = """
#include "channel.cuh"
using namespace stretto;
extern "C" __global__ void wait_for(const MemoryChannel* channels, int peer) {
  if (threadIdx.x == 0) channels[peer].wait(42);
}
"""


@check
def absent(r: Rank) -> Any:
    """Who never signals is named, with the author's step, and everybody hears it."""
    comm = r.open(SHORT_S)
    made = comm.channels(64)
    kernel = made.kernel(WAIT, "wait_for", threads=32)
    r.together()

    def act() -> None:
        if r.rank == 0:
            kernel(made.pointer, r.n - 1)

    text = _fails(r, act)
    if r.rank == 0:
        assert "channel to rank" in text, text
        assert "step 42" in text, text
    return text[:300]


BAD = """
#include "engine_channel.cuh"
using namespace stretto;
extern "C" __global__ void ask_wrongly(const EngineChannel* engines, int peer) {
  if (threadIdx.x == 0) {
    engines[peer].put(1 << 20, 0, 4096);
    engines[peer].flush(7);
  }
}
"""


@check
def wrong_request(r: Rank) -> Any:
    """A put beyond the buffer breaks the communicator, and says so on every rank."""
    comm = r.open(SHORT_S * 2)
    made = comm.channels(4096, kind="engine")
    kernel = made.kernel(BAD, "ask_wrongly", threads=32)
    r.together()

    def act() -> None:
        if r.rank == 0:
            kernel(made.engine_pointer, 1)

    text = _fails(r, act)
    assert "put of 4096 bytes" in text, text
    return text[:300]


@check
def switch_refused(r: Rank) -> Any:
    """Channels through the switch are refused, whatever the machine."""
    from stretto.errors import DeviceError

    comm = r.open()
    try:
        comm.channels(64, kind="switch")
    except DeviceError as e:
        return str(e)[:100]
    raise AssertionError("a switch channel was made")


@check
def matmul(r: Rank) -> Any:
    """A product whose tiles are all-reduced as they finish."""
    module, comm, torch = example("gpu/matmul_all_reduce"), r.open(), r.torch
    m, n, k = (128, 128, 256) if r.share else (512, 1024, 1024)
    made = torch.Generator("cuda").manual_seed(r.rank)
    a = torch.randn(m, k, device="cuda", generator=made)
    b = torch.randn(k, n, device="cuda", generator=made)
    c = torch.zeros(m, n, device="cuda")
    fused = module.MatmulAllReduce(comm, m, n)
    want = (a.double() @ b.double()).float()
    torch.cuda.synchronize()
    comm.all_reduce(want)
    r.together()
    for _ in range(3):
        fused(a, b, c)
    r.together()
    comm.check()
    worst = float((c - want).abs().max())
    assert worst < 1e-2, worst
    everybody = comm.all_gather(c)
    torch.cuda.synchronize()
    assert bool((everybody == c).all()), "ranks differ in their last bits"
    return {"worst": worst}


@check
def triton_all_reduce(r: Rank) -> Any:
    """The hand-written all_reduce in Triton: fresh data, a graph, all ranks alike."""
    module, comm, torch = example("gpu/triton_all_reduce"), r.open(), r.torch
    count = 5001
    x, out = (torch.zeros(count, device="cuda") for _ in range(2))
    made = module.make(comm, count)
    data = [
        torch.randn(count, device="cuda", generator=_seeded(torch, q))
        for q in range(r.n)
    ]
    want = torch.zeros(count, device="cuda")
    for part in data:
        want += part
    x.copy_(data[r.rank])
    r.together()
    for _ in range(3):
        out.fill_(-1)
        module.run(made, x, out)
        r.together()
        comm.check()
        assert torch.equal(out, want), f"{out[:4]}, want {want[:4]}"
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        module.run(made, x, out)
    r.together()
    for _ in range(5):
        out.fill_(-1)
        graph.replay()
        r.together()
        assert torch.equal(out, want), f"replayed: {out[:4]}, want {want[:4]}"
    comm.check()
    return {"count": count}


def _seeded(torch: Any, seed: int) -> Any:
    return torch.Generator("cuda").manual_seed(seed)


@check
def triton_signals(r: Rank) -> Any:
    """Signals in Triton on even ranks, in CUDA C++ on odd ones: one protocol."""
    comm, torch = r.open(), r.torch
    made = comm.channels(2 * 64 * 8)
    out, rounds = r.zeros(64), 6 if r.share else 100
    text = example("gpu/ping_pong").BY_STORES
    cuda = made.kernel(text, "ping_pong", threads=64)
    wrong = r.zeros(2)
    if r.rank == 0:
        triton_ping(made.pointer, out, 0, compile_only=True)
    r.together()
    if r.rank == 0:
        triton_ping(made.pointer, out, rounds)
    elif r.rank == 1:
        cuda(made.pointer, rounds, 64 * 8, wrong)
    r.together()
    comm.check()
    assert wrong.tolist() == [0, 0], wrong.tolist()
    last = 1000 * (rounds - 1) + torch.arange(64, device="cuda")
    assert r.rank != 0 or torch.equal(out, last), f"{out[:4]}, want {last[:4]}"
    return {"rounds": rounds}


def triton_ping(table: int, out: Any, rounds: int, compile_only: bool = False) -> None:
    """Play rank 0 of the ping-pong; `compile_only`: no rounds."""
    sys.path.insert(0, str(ROOT / "tests" / "device"))
    from triton_kernels import ping

    ping[(1,)](table, out, 0 if compile_only else rounds, num_warps=2)


@check
def triton_absent(r: Rank) -> Any:
    """A wait in Triton ends at the deadline, and the record names the step."""
    comm = r.open(SHORT_S)
    made, out = comm.channels(64), r.zeros(64)
    sys.path.insert(0, str(ROOT / "tests" / "device"))
    from triton_kernels import wait_for

    wait_for[(1,)](made.pointer, out, r.rank, r.n, 0, num_warps=2)
    r.together()

    def act() -> None:
        if r.rank == 0:
            wait_for[(1,)](made.pointer, out, r.n - 1, r.n, 1, num_warps=2)

    text = _fails(r, act)
    if r.rank == 0:
        assert "step 5" in text, text
        assert out[0].item() == 2, f"the kernel said {out[0].item()}"
    return text[:300]


@check
def registered(r: Rank) -> Any:
    """A registered kernel gives its program's bits, in graphs and mixed with others."""
    example("write_a_kernel")
    comm, torch = r.open(), r.torch
    found = 0
    for dtype in (torch.float32, torch.bfloat16, torch.int32):
        for count in (1, 1003, 20_000):
            for op in ("sum", "max"):
                x = torch.randint(-99, 99, (count,), device="cuda").to(dtype) / 4
                x = x.to(dtype) + r.rank
                mine, theirs = x.clone(), x.clone()
                comm.all_reduce(mine, op=op, algorithm="all_reduce/one_hop")
                comm.all_reduce(theirs, op=op, algorithm="all_reduce/one_shot")
                r.together()
                comm.check()
                assert torch.equal(mine, theirs), f"{dtype} {count} {op}"
                found += 1
    x = torch.ones(1000, device="cuda")
    out = torch.zeros_like(x)
    graph = torch.cuda.CUDAGraph()
    comm.all_reduce(x, out=out, algorithm="all_reduce/one_hop")
    comm.all_gather(x)
    r.together()
    with torch.cuda.graph(graph):
        for _ in range(3):
            comm.all_reduce(x, out=out, algorithm="all_reduce/one_hop")
            comm.all_gather(x)
    r.together()
    for turn in range(5):
        x.fill_(turn + 1)
        graph.replay()
        comm.all_reduce(x.clone())
        r.together()
        comm.check()
        assert bool((out == r.n * (turn + 1)).all()), f"replay {turn}: {out[:4]}"
    return {"cases": found}


@check
def registered_times(r: Rank) -> Any:
    """Microseconds of a call in graphs: the registered kernel, and what is chosen."""
    if r.share:
        return "kernels take turns on one GPU: no time means anything"
    example("write_a_kernel")
    comm, torch = r.open(), r.torch
    answer = {}
    for nbytes in (1 << 10, 1 << 14, 1 << 16):
        x = torch.zeros(nbytes // 2, device="cuda", dtype=torch.bfloat16)
        for name in ("all_reduce/one_hop", None):
            answer[f"{nbytes} {name or 'default'}"] = _graph_us(r, comm, x, name)
    return answer


def _graph_us(r: Rank, comm: Any, x: Any, name: str | None) -> float:
    torch, calls = r.torch, 100
    for _ in range(3):
        comm.all_reduce(x, algorithm=name)
    r.together()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            comm.all_reduce(x, algorithm=name)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    samples = []
    for _ in range(7):
        r.together()
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        samples.append(begin.elapsed_time(end) * 1e3 / calls)
    return round(sorted(samples)[3], 2)


def work(world: Any, names: list[str], share: bool, out: str) -> list[dict[str, Any]]:
    """Run the checks on one rank; rank 0 prints and writes as it goes."""
    import torch

    torch.cuda.set_device(0 if share else world.rank)
    torch.zeros(1, device="cuda")
    rank, rows = Rank(world, torch, share), []
    for name in names:
        began, error, answer = time.monotonic(), "", None
        try:
            answer = CHECKS[name](rank)
        except BaseException as e:
            error = f"{type(e).__name__}: {e}"[:1500]
            if not isinstance(e, AssertionError):
                error += "\n" + "".join(traceback.format_tb(e.__traceback__)[-3:])
        try:
            if rank.comm is not None:
                rank.comm.close()
        except Exception as e:
            error += f" (close: {e})"
        rank.comm = None
        world.barrier()
        took = round(time.monotonic() - began, 2)
        rows.append({"check": name, "seconds": took, "error": error, "said": answer})
        if error or world.rank == 0:
            word = "FAIL" if error else "ok  "
            text = error or json.dumps(answer, default=str)
            print(f"{word} rank {world.rank} {name} {took} s: {text[:900]}", flush=True)
        (Path(out) / f"channels{world.num_ranks}r{world.rank}.json").write_text(
            json.dumps(rows, indent=1, default=str)
        )
    return rows


def main() -> int:
    """Spawn the ranks and report."""
    import stretto

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--share", action="store_true")
    parser.add_argument("--only", default="", help="words a check's name must contain")
    parser.add_argument("--out", default=os.environ.get("OUT", "."))
    args = parser.parse_args()
    os.environ["NCCL_NVLS_ENABLE"] = "0"
    os.environ["NVSHMEM_DISABLE_NVLS"] = "1"
    os.environ["TORCH_SYMM_MEM_DISABLE_MULTICAST"] = "1"
    if args.share:
        os.environ["STRETTO_CUDA_SHARE_GPU"] = "1"
    names = [n for n in CHECKS if all(word in n for word in args.only.split())]
    rows = stretto.spawn(
        work, names, args.share, args.out, num_ranks=args.ranks, deadline_s=30.0
    )
    bad = sorted({row["check"] for one in rows for row in one if row["error"]})
    print(f"{len(names)} checks on {args.ranks} ranks, failed: {bad or 'none'}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
