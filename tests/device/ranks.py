"""What several ranks do together on GPUs: sessions, graphs, streams, faults.

    python tests/device/ranks.py --ranks 4 --out DIR [--share] [--only WORDS]

Starts one process a rank and runs every check in all of them, each with a session of
its own; a check that fails does not keep the next from running. `--share` puts all
ranks on one GPU, where kernels take turns: slow, and enough to test what is said.
"""

# ruff: noqa: T201  (a program: it prints its report)

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "benchmarks")]

import numpy as np  # noqa: E402
from gpu_group import ChildGroup, Hub  # noqa: E402

from stretto import algorithms, collectives  # noqa: E402
from stretto.collectives import Operator, Shape, storage  # noqa: E402
from stretto.errors import (  # noqa: E402
    CallError,
    CollectiveMismatch,
    CollectiveTimeout,
    StrettoError,
)
from stretto.executors import Call  # noqa: E402
from stretto.lower import lower  # noqa: E402
from stretto.plan import Schedule  # noqa: E402
from stretto.testing import draw, input_counts, interpret, output_counts  # noqa: E402
from stretto.verify import verify, verify_plan  # noqa: E402

CHECKS: dict[str, Callable[[Rank], Any]] = {}
DEADLINE_S = 3.0

Check = Callable[["Rank"], Any]


def check(function: Check) -> Check:
    """Register a check under its name."""
    CHECKS[function.__name__] = function
    return function


class Bound:
    """A prepared plan with arrays for it, and what must come out."""

    def __init__(
        self, rank: Rank, name: str, schedule: str, count: int, dtype: str = "bfloat16"
    ) -> None:
        n = rank.n
        self.rank, self.dtype = rank, dtype
        params: dict[str, object] = {}
        if name.startswith("permute/"):
            params = {"pairs": tuple((r, (r + 1) % n) for r in range(n))}
        self.program = algorithms.get(name).build(n, **params)
        kind = collectives.get(self.program.collective)
        shape = Shape(num_ranks=n, split=self.program.split, params=self.program.params)
        self.counts = tuple([count] * kind.num_parts(shape))
        parsed = Schedule.parse(schedule)
        plan = verify_plan(lower(verify(self.program), parsed))
        call = Call(dtype=dtype, op=Operator.SUM, counts=self.counts)
        self.launch = rank.session.prepare(plan, call)
        self.n_in = input_counts(self.program, self.counts)
        self.n_out = output_counts(self.program, self.counts)
        itemsize = storage(dtype).itemsize
        zero_copy = parsed.memory == "zero_copy"
        most = max(1, *self.n_in, *self.n_out) * itemsize
        mine_in, mine_out = self.n_in[rank.rank], self.n_out[rank.rank]
        self.whole = rank.bytes(most, zero_copy), rank.bytes(most, zero_copy)
        self.x = self.whole[0][: mine_in * itemsize]
        self.out = self.whole[1][: mine_out * itemsize]

    def fill(self, seed: int) -> list[Any]:
        """Write fresh data and poison; return every rank's due output."""
        torch = self.rank.torch
        given = [
            draw(np.random.default_rng((seed, q)), c, self.dtype, Operator.SUM)
            for q, c in enumerate(self.n_in)
        ]
        mine = np.ascontiguousarray(given[self.rank.rank]).view(np.uint8)
        self.x.copy_(torch.from_numpy(mine.copy()))
        self.out.fill_(0xA5)
        return interpret(self.program, given, dtype=self.dtype, counts=self.counts)

    def wrong(self, want: Sequence[Any]) -> str:
        """Return how the output differs from what is due, or nothing."""
        got = self.out.cpu().numpy()
        due = np.ascontiguousarray(want[self.rank.rank]).view(np.uint8)
        bad = np.flatnonzero(got != due)
        if not bad.size:
            return ""
        return f"{bad.size} of {due.size} bytes differ, the first at {int(bad[0])}"

    def __call__(self, **how: Any) -> None:
        """Launch, on arrays that exist on every rank, also where nothing is in them."""
        self.launch(*self.whole, **how)


class CheckGroup(ChildGroup):
    """A group whose ranks leave a check together, also when one fails in it."""

    def exchange(self, payload: Any, fds: Sequence[int] = ()) -> Any:
        """Exchange; raise when another rank has ended the check already."""
        said = super().exchange(payload, fds)
        if "final" not in payload and any("final" in m for m, _ in said):
            raise RuntimeError("another rank ended this check")
        return said

    def end(self, payload: dict[str, Any]) -> list[dict[str, Any]]:
        """Exchange what a check found, once all ranks have ended it."""
        while True:
            said = [m for m, _ in self.exchange({**payload, "final": True})]
            if all("final" in m for m in said):
                return said


class Rank:
    """One rank's process: torch, its group, and the session of a check."""

    def __init__(self, group: CheckGroup, torch: Any) -> None:
        self.group, self.torch = group, torch
        self.rank, self.n = group.rank, group.num_ranks
        self.session: Any = None
        self.shared = False

    def open(self, deadline_s: float = 20.0) -> None:
        """Open a session for a check (collective)."""
        from stretto.executors.cuda import open_session

        self.group.deadline_s = deadline_s
        self.group.broken[0] = 0
        self.session = open_session(self.group)

    def bytes(self, nbytes: int, registered: bool) -> Any:
        """Return a tensor of bytes, in registered memory when asked."""
        if registered:
            return self.torch.from_dlpack(self.session.empty((nbytes,), "uint8"))
        return self.torch.empty(nbytes, dtype=self.torch.uint8, device="cuda")

    def together(self) -> None:
        """Wait for all ranks, GPUs included."""
        self.torch.cuda.synchronize()
        self.group.exchange({})


def verdict(found: list[str]) -> dict[str, Any]:
    """Return a check's answer: every difference is a failure."""
    wrong = [f for f in found if f]
    assert not wrong, "; ".join(wrong[:5])
    return {"cases": len(found)}


@check
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
    from stretto.executors.cuda.driver import ask

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


KERNELS = [
    "push packets staged blocks=4 threads=256",
    "push lines staged blocks=4 threads=256",
    "push bulk staged blocks=4 threads=256 tile_bytes=65536",
    "pull bulk staged blocks=4 threads=256 tile_bytes=65536",
    "push bulk zero_copy blocks=4 threads=256",
    "pull bulk zero_copy blocks=4 threads=256",
]


def _values(r: Rank, schedules: Sequence[str], sizes: Sequence[int]) -> Any:
    """Run every algorithm under schedules; one that breaks is noted and passed over."""
    r.open(6.0)
    found, refused = [], []
    plans: set[tuple[str, str]] = set()
    for name in algorithms.names():
        if algorithms.get(name).refuses(r.n) is not None:
            continue
        for schedule, count in itertools.product(schedules, sizes):
            try:
                bound = Bound(r, name, schedule, count)
            except StrettoError as e:
                refused.append(f"{name} {schedule}: {e}")
                continue
            plans.add((name, schedule))
            for seed in range(2):
                wrong, broken = _one(r, bound, seed)
                found.append(wrong and f"{name} {schedule} {count}: {wrong}")
                said = [m for m, _ in r.group.exchange({"broken": broken})]
                if any(m["broken"] for m in said):
                    del bound
                    r.session.close()
                    r.open(6.0)
                    break
    return {**verdict(found), "refused": refused, "plans": len(plans)}


def _one(r: Rank, bound: Bound, seed: int) -> tuple[str, bool]:
    """Call once; return what is wrong, and whether the session is broken."""
    want = bound.fill(seed)
    r.together()
    try:
        bound()
        r.session.synchronize(r.torch.cuda.current_stream().cuda_stream)
    except StrettoError as e:
        return f"{type(e).__name__}: {e}"[:300], True
    return bound.wrong(want), False


@check
def values(r: Rank) -> Any:
    """Every shipped algorithm, each protocol, bit for bit."""
    return _values(r, KERNELS[:1] if r.shared else KERNELS, (4099,))


@check
def values_zero_copy(r: Rank) -> Any:
    """Zero-copy kernels between processes."""
    return _values(r, KERNELS[4:], (999,)) if r.shared else {}


@check
def values_large(r: Rank) -> Any:
    """A few megabytes, several tiles."""
    return {} if r.shared else _values(r, KERNELS[2:], (1 << 19,))


@check
def engines(r: Rank) -> Any:
    """Copy engines, one and three streams."""
    schedules = [f"push engine zero_copy blocks={k}" for k in (1, 3)]
    return _values(r, schedules, (4099, 1 << 19))


def _pair(r: Rank, schedule: str) -> tuple[Bound, Bound]:
    return (
        Bound(r, "all_reduce/two_shot", schedule, 5001),
        Bound(r, "all_gather/one_shot", schedule, 777),
    )


def _graphs(r: Rank, schedules: Sequence[str], rounds: int) -> Any:
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


@check
def graphs(r: Rank) -> Any:
    """Two graphs in turn, replayed on fresh data, mixed with eager calls."""
    cases = [
        ("all_reduce/one_shot", "push packets staged blocks=2 threads=256", 5001),
        ("all_reduce/two_shot", "push bulk staged blocks=4 threads=256", 70001),
        ("all_gather/one_shot", "push bulk zero_copy blocks=4 threads=256", 5001),
    ]
    return _graphs(r, cases, 6 if r.shared else 30)


@check
def engine_graphs(r: Rank) -> Any:
    """Copy engines in graphs."""
    cases = [
        ("all_gather/one_shot", "push engine zero_copy blocks=3", 70001),
        ("all_to_all/one_shot", "push engine zero_copy blocks=1", 5001),
    ]
    return _graphs(r, cases, 10)


@check
def streams(r: Rank) -> Any:
    """Each stream has flags of its own; the fifth stream is told so."""
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
    bounds[0](stream=several[2])
    bounds[0](stream=several[3])
    try:
        bounds[0](stream=several[4])
        found.append("a fifth stream was accepted")
    except CallError as e:
        found.append("" if "sets of flags" in str(e) else f"it said {e}")
    torch.cuda.synchronize()
    return verdict(found)


def _absent(r: Rank, schedule: str, graph: bool) -> Any:
    r.open(DEADLINE_S)
    torch = r.torch
    bound = Bound(r, "all_gather/one_shot", schedule, 5001)
    bound.fill(0)
    r.together()
    bound()
    r.together()
    captured = torch.cuda.CUDAGraph()
    if graph:
        with torch.cuda.graph(captured):
            bound()
        r.together()
        captured.replay()
        r.together()
    missing = r.n - 1
    answer: dict[str, Any] = {}
    if r.rank != missing:
        began = time.monotonic()
        captured.replay() if graph else bound()
        torch.cuda.synchronize()
        took = time.monotonic() - began
        time.sleep(0.2)
        try:
            r.session.check()
            raise AssertionError("nothing was raised")
        except (CollectiveTimeout, CollectiveMismatch) as e:
            text = str(e)
        assert f"[{missing}]" in text, text
        assert took < DEADLINE_S * 2 + 2, f"it took {took:.1f} s"
        try:
            bound()
            raise AssertionError("a broken session was usable")
        except StrettoError:
            pass
        answer = {"seconds": round(took, 2), "text": text}
    else:
        time.sleep(DEADLINE_S + 1.5)
    left = torch.ones(1000, device="cuda").sum().item()
    assert left == 1000, "the device is unusable"
    return answer


@check
def absent(r: Rank) -> Any:
    """Who does not call is named at the deadline, and the device stays usable."""
    return _absent(r, "push packets staged blocks=2 threads=256", False)


@check
def absent_bulk_graph(r: Rank) -> Any:
    """The same when only a graph is replayed, found by the watcher."""
    return _absent(r, "push bulk zero_copy blocks=2 threads=256", True)


@check
def absent_engine(r: Rank) -> Any:
    """The same for copy engines, whose waits have no deadline of their own."""
    return _absent(r, "push engine zero_copy blocks=1", False)


@check
def absent_engine_graph(r: Rank) -> Any:
    """And for copy engines in a graph."""
    return _absent(r, "push engine zero_copy blocks=3", True)


@check
def mismatch(r: Rank) -> Any:
    """Different calls are told apart."""
    r.open(DEADLINE_S)
    schedule = "push packets staged blocks=2 threads=256"
    same = Bound(r, "all_reduce/one_shot", schedule, 1000)
    odd = Bound(r, "all_reduce/one_shot", schedule, 1008)
    r.together()
    (odd if r.rank == 0 else same)()
    r.torch.cuda.synchronize()
    time.sleep(0.2)
    try:
        r.session.check()
    except (CollectiveMismatch, CollectiveTimeout) as e:
        return {"kind": type(e).__name__, "text": str(e)}
    raise AssertionError("nothing was raised")


@check
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


@check
def soak(r: Rank) -> Any:
    """Many small calls, eager and replayed, with a check of values now and then."""
    r.open()
    torch = r.torch
    seconds = 3.0 if r.shared else 8.0
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
        if max(m["t"] for m in said) > seconds:
            return {**verdict(found), "calls": calls}


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
    from stretto.executors.cuda.abi import Kernel
    from stretto.executors.cuda.compile import compile_kernel
    from stretto.executors.cuda.launch import load

    kernel = Kernel(text=text, ranks=(r.rank,), grid=1, threads=threads)
    image = compile_kernel(kernel, arch=r.session.device.arch)
    return load(r.session.device, kernel, image)


@check
def channels(r: Rank) -> Any:
    """Kernels written by hand: ping-pong by signals, all_reduce by packets."""
    import ctypes
    import struct

    from stretto.executors.cuda.driver import api
    from stretto.executors.cuda.launch import enqueue

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


def chosen(only: str) -> list[str]:
    """Return the names of checks with certain words, the longest ones last."""
    found = [n for n in CHECKS if all(word in n for word in only.split())]
    return sorted(found, key=lambda n: n.startswith("values"))


def _compile(job: tuple[str, str, int, int]) -> None:
    """Compile one kernel of `values` into the disk cache; refusals come up later."""
    from stretto.executors.cuda.compile import compile_kernel
    from stretto.executors.cuda.generate import generate

    name, schedule, rank, n = job
    params: dict[str, object] = {}
    if name.startswith("permute/"):
        params = {"pairs": tuple((r, (r + 1) % n) for r in range(n))}
    try:
        program = algorithms.get(name).build(n, **params)
        plan = lower(verify(program), Schedule.parse(schedule))
        compile_kernel(generate(plan, rank=rank, dtype="bfloat16"), arch=(9, 0))
    except StrettoError:
        return


def warm(n: int, schedules: Sequence[str]) -> None:
    """Compile what `values` runs, on all cores."""
    names = [a for a in algorithms.names() if algorithms.get(a).refuses(n) is None]
    jobs = [(a, s, r, n) for a in names for s in schedules for r in range(n)]
    began = time.monotonic()
    with ProcessPoolExecutor(max(1, (os.cpu_count() or 2) - 1)) as pool:
        list(pool.map(_compile, jobs, chunksize=2))
    print(
        f"{len(jobs)} kernels compiled in {time.monotonic() - began:.1f} s", flush=True
    )


def child(args: argparse.Namespace) -> None:
    """Run every check in one rank, telling all ranks' outcomes to everybody."""
    import torch

    torch.cuda.set_device(0 if args.share else args.child)
    torch.zeros(1, device="cuda")
    group = CheckGroup(args.child, args.ranks, args.fd)
    rank = Rank(group, torch)
    rank.shared = args.share
    rows = []
    for name in chosen(args.only):
        function = CHECKS[name]
        began, error, answer = time.monotonic(), "", None
        try:
            answer = function(rank)
        except BaseException as e:
            error = f"{type(e).__name__}: {e}"[:1500]
            if not isinstance(e, AssertionError):
                error += "\n" + "".join(traceback.format_tb(e.__traceback__)[-3:])
        try:
            if rank.session is not None:
                rank.session.close()
        except Exception as e:
            error += f" (close: {e})"
        rank.session = None
        said = group.end({"error": error, "answer": answer})
        row = {
            "check": name,
            "seconds": round(time.monotonic() - began, 2),
            "errors": [m["error"] for m in said],
            "answers": [m["answer"] for m in said],
        }
        rows.append(row)
        if args.child == 0:
            ok = not any(row["errors"])
            print("ok  " if ok else "FAIL", name, row["seconds"], "s", flush=True)
            for q, text in enumerate(row["errors"]):
                if text:
                    print(f"     rank {q}: {text[:700]}", flush=True)
            out = Path(args.out) / f"ranks{args.ranks}{'s' * args.share}.json"
            out.write_text(json.dumps(rows, indent=1, default=str))


def main() -> int:
    """Start the ranks and wait for them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--share", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--out", default=os.environ.get("OUT", "."))
    parser.add_argument("--seconds", type=float, default=240)
    parser.add_argument("--child", type=int, default=-1)
    parser.add_argument("--fd", type=int, default=-1)
    args = parser.parse_args()
    if args.child >= 0:
        child(args)
        return 0
    Path(args.out).mkdir(parents=True, exist_ok=True)
    if any(name.startswith("values") for name in chosen(args.only)):
        warm(args.ranks, KERNELS[:1] + KERNELS[4:] if args.share else KERNELS)
    hub = Hub(args.ranks)
    environment = {
        **os.environ,
        "NCCL_NVLS_ENABLE": "0",
        "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
        "NVSHMEM_DISABLE_NVLS": "1",
        "CUDA_MODULE_LOADING": "EAGER",
    }
    if args.share:
        environment["STRETTO_CUDA_SHARE_GPU"] = "1"
    started = []
    for q in range(args.ranks):
        fd = hub.children[q].fileno()
        command = [sys.executable, __file__, "--child", str(q), "--fd", str(fd)]
        command += ["--ranks", str(args.ranks), "--only", args.only]
        command += ["--out", args.out] + ["--share"] * args.share
        environment["LOCAL_RANK"] = str(q)
        started.append(subprocess.Popen(command, pass_fds=[fd], env=dict(environment)))
    for link in hub.children:
        link.close()
    stop_at = time.monotonic() + args.seconds
    codes = []
    for process in started:
        try:
            codes.append(process.wait(max(1.0, stop_at - time.monotonic())))
        except subprocess.TimeoutExpired:
            process.kill()
            codes.append(-9)
    out = Path(args.out) / f"ranks{args.ranks}{'s' * args.share}.json"
    rows = json.loads(out.read_text()) if out.exists() else []
    bad = [row["check"] for row in rows if any(row["errors"])]
    print(f"{len(rows)} checks, failed: {bad or 'none'}, exit codes {codes}")
    return 1 if bad or any(codes) else 0


if __name__ == "__main__":
    sys.exit(main())
