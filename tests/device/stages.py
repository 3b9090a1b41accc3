"""What a communicator is asked to do on GPUs, stage by stage; communicator.py runs it.

Each stage counts its cases in a `Stage` and notes what is wrong with them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from calls import Case, invoke, tensor
from stage import Stage, stage

from stretto.errors import CallError, CommunicationError
from stretto.program.collectives import DTYPES, Operator, check

COUNTS = (1, 4099, (1 << 18) + 3)
ROOTED = ("broadcast", "reduce", "gather", "scatter")
EVERY = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "permute", *ROOTED)
POISON = 0xA5


def own(case: Case, rank: int) -> tuple[bool, bool]:
    """Return whether a rank passes an input, and an output."""
    root = case.params.get("root", rank)
    gives = case.collective not in ("broadcast", "scatter") or rank == root
    gets = case.collective not in ("reduce", "gather") or rank == root
    return gives, gets


def one(s: Stage, case: Case, seed: int, shift: int = 0, **how: Any) -> None:
    """Make one call on fresh data and compare bits, the CPU executor's too."""
    choice = case.choice(s.selector)
    given, want, sizes = case.due(choice, seed)
    due = np.ascontiguousarray(want[s.rank]).view(np.uint8).reshape(-1)
    gives, gets = own(case, s.rank)
    for device in dict.fromkeys((s.device, "cpu")):
        x = out = None
        if gives:
            x = tensor(s.torch, device, given[s.rank], case.dtype, shift)
        if gets:
            raw = np.full(due.size, POISON, np.uint8)
            assert sizes[s.rank] == want[s.rank].size, "the interpreter's own sizes"
            out = tensor(s.torch, device, raw, case.dtype, shift)
        if device == "cpu":
            how = {"algorithm": choice.algorithm.name}
        invoke(s.comm, case, x, out, **how)
        s.sync()
        got = s.bits(out) if gets else due
        bad = np.flatnonzero(got != due)
        first = int(bad[0]) if bad.size else 0
        text = f"{case} [{choice}] on {device}: {bad.size} bytes, first {first}"
        s.expect(not bad.size, text)


def verb_cases(n: int) -> Iterator[Case]:
    """Yield every verb on every size, in a type of 4 and one of 2 bytes."""
    pairs = tuple((r, (r + 1) % n) for r in range(n))
    for count in COUNTS:
        for dtype in ("float32", "bfloat16"):
            for name in EVERY:
                params: dict[str, Any] = {"root": n - 1} if name in ROOTED else {}
                if name == "permute":
                    params = {"pairs": pairs}
                yield Case(
                    collective=name,
                    num_ranks=n,
                    count=count,
                    dtype=dtype,
                    params=params,
                )


@stage
def verbs(s: Stage) -> None:
    """Every verb, odd sizes."""
    for seed, case in enumerate(verb_cases(s.n)):
        one(s, case, seed)


@stage
def unaligned(s: Stage) -> None:
    """Views that begin one element into their memory."""
    for seed, case in enumerate(verb_cases(s.n)):
        if case.count == COUNTS[1]:
            one(s, case, 100 + seed, shift=1)


def type_cases(n: int) -> Iterator[Case]:
    """Yield every type with every third operator, in turn."""
    turn = 0
    for dtype in DTYPES:
        for op in Operator:
            try:
                check(op, dtype)
            except CallError:
                continue
            turn += 1
            if turn % 3 == 0 or dtype == "bfloat16":
                yield Case(
                    collective="all_reduce",
                    num_ranks=n,
                    count=COUNTS[1],
                    dtype=dtype,
                    op=op.value,
                )


@stage
def types(s: Stage) -> None:
    """Element types and operators."""
    for seed, case in enumerate(type_cases(s.n)):
        one(s, case, 200 + seed)


@stage
def in_place(s: Stage) -> None:
    """What may be the same memory is, and gives the same."""
    n, me = s.n, s.rank
    for name in ("all_reduce", "all_to_all", "all_gather", "reduce_scatter"):
        case = Case(collective=name, num_ranks=n, count=COUNTS[1])
        given, want, _ = case.due(case.choice(s.selector), 7)
        width = max(given[me].size, want[me].size)
        whole = tensor(s.torch, s.device, np.zeros(width, np.float32), "float32")
        x, out = whole[: given[me].size], whole[: want[me].size]
        if name == "all_gather":
            x = whole.view(n, -1)[me]
        elif name == "reduce_scatter":
            out = whole.view(n, -1)[me]
        x.copy_(s.torch.from_numpy(given[me]).to(s.device))
        if name == "all_reduce":
            s.comm.all_reduce(x)
        else:
            getattr(s.comm, name)(x, out=out)
        s.sync()
        due = np.ascontiguousarray(want[me]).view(np.uint8)
        s.expect(bool((s.bits(out) == due).all()), f"{name} in place")


def empty_cases(n: int) -> Iterator[Case]:
    """Yield verbs whose arrays lie in memory of empty()."""
    for name in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"):
        for count in COUNTS[1:]:
            yield Case(
                collective=name,
                num_ranks=n,
                count=count,
                memory="zero_copy",
                in_place=False,
            )


@stage
def registered(s: Stage) -> None:
    """Zero-copy verbs in memory of empty()."""
    for case in empty_cases(s.n):
        given, want, _ = case.due(case.choice(s.selector), case.count)
        arrays = []
        for values in (given[s.rank], want[s.rank]):
            room = s.comm.empty(values.size, "float32", device=s.device)
            arrays.append(s.torch.from_dlpack(room))
        x, out = arrays
        x.copy_(s.torch.from_numpy(given[s.rank]).to(s.device))
        out.fill_(-1)
        s.sync()
        s.comm.barrier()
        getattr(s.comm, case.collective)(x, out=out)
        s.sync()
        due = np.ascontiguousarray(want[s.rank]).view(np.uint8)
        s.expect(bool((s.bits(out) == due).all()), f"{case}")


@stage
def registration(s: Stage) -> None:
    """Tensors of torch's own, registered: by identity, given back, used again."""
    if s.device == "cpu":
        return
    torch, count = s.torch, 1 << 19
    session = s.comm._session("cuda")
    for turn in range(3):
        pad = s.full(1024 * (1 + s.rank), 0)  # ranks' arrays begin elsewhere
        x, out = s.full(count, s.rank + turn), s.full(count * s.n, -1)
        shared = [s.comm.register(x), s.comm.register(out)]
        known = [session.offset(a) is not None for a in (x, out)]
        s.said.setdefault("shared", shared)
        s.expect(known == shared, f"shared {shared}, known {known}")
        for _ in range(2):
            out.fill_(-1)
            s.sync()
            s.comm.barrier()
            s.comm.all_gather(x, out=out)
            s.sync()
            good = all(
                bool((part == q + turn).all())
                for q, part in enumerate(out.view(s.n, -1))
            )
            s.expect(good, f"all_gather of registered tensors, {turn=}")
        view = x[1000:5096]  # the same part of it on every rank
        s.comm.all_reduce(view)
        s.sync()
        want = sum(q + turn for q in range(s.n))
        s.expect(bool((view == want).all()), f"all_reduce of a view, {turn=}")
        for a in (x, out):
            s.comm.deregister(a)
        known = [session.offset(a) is not None for a in (x, out)]
        s.expect(not any(known), f"after deregister {known}")
        x.fill_(s.rank)
        s.comm.all_reduce(x)
        s.sync()
        want = sum(range(s.n))
        s.expect(bool((x == want).all()), f"all_reduce after deregister, {turn=}")
        del x, out, view, pad
        torch.cuda.empty_cache()


@stage
def transfers(s: Stage) -> None:
    """Send and recv in a ring, permute with idle ranks, barriers."""
    n, me = s.n, s.rank
    x, got = s.full(4099, me + 1), s.full(4099, 0)
    for _ in range(3):
        if me % 2 == 0:
            s.comm.send(x, to=(me + 1) % n)
            s.comm.recv(got, source=(me - 1) % n)
        else:
            s.comm.recv(got, source=(me - 1) % n)
            s.comm.send(x, to=(me + 1) % n)
        s.sync()
        s.expect(bool((got == (me - 1) % n + 1).all()), "send and recv")
        got.fill_(0)
    moved = s.comm.permute(x, ((0, n - 1),))
    s.sync()
    want = 1 if me == n - 1 else 0
    s.expect(bool((moved == want).all()), f"permute: {moved[:2]}, want {want}")
    for _ in range(5):
        s.comm.barrier()


@stage
def halves(s: Stage) -> None:
    """Communicators of some of the ranks, and results that are new tensors."""
    half = s.comm.split(s.rank % 2)
    x = s.full(1000, s.rank)
    half.all_reduce(x)
    s.sync()
    want = sum(q for q in range(s.n) if q % 2 == s.rank % 2)
    s.expect(bool((x == want).all()), f"split: {x[:2]}, want {want}")
    half.close()
    own, ones = s.full(s.n, s.rank), s.full(2 * s.n, 1)
    every, swapped = s.comm.all_gather(own), s.comm.all_to_all(own)
    part = s.comm.reduce_scatter(ones)
    s.sync()
    ranks = s.torch.arange(s.n, device=s.device)
    s.expect(bool((every == ranks[:, None]).all()), f"new, gathered: {every}")
    s.expect(bool((swapped == ranks).all()), f"new, swapped: {swapped}")
    s.expect(part.tolist() == [s.n] * 2, f"new, summed: {part}")


@stage
def streams(s: Stage) -> None:
    """Two streams at once, each with flags of its own; three more in turn."""
    if s.device == "cpu":
        return
    torch = s.torch
    sides = [torch.cuda.Stream() for _ in range(5)]
    arrays = [s.full(3000 + i, s.rank + i) for i in range(5)]
    torch.cuda.synchronize()
    for _ in range(20):
        for x, side in zip(arrays, sides, strict=True):
            s.comm.all_reduce(x, op="max", stream=side)
    s.sync()
    for i, x in enumerate(arrays):
        s.expect(bool((x == s.n - 1 + i).all()), f"stream {i}: {x[:2]}")


@stage
def graphs(s: Stage) -> None:
    """Captured calls, staged and zero-copy, in turn and mixed with eager ones."""
    if s.device == "cpu":
        return
    torch = s.torch
    room = torch.from_dlpack(s.comm.empty(4096, "float32", device="cuda"))
    plain = s.full(70001, 1)
    captured = []
    for x in (room, plain):
        x.fill_(1)
        s.comm.all_reduce(x)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            s.comm.all_reduce(x)
        captured.append((x, graph))
    for _ in range(10):
        for x, graph in captured:
            x.fill_(1)
            s.sync()
            s.comm.barrier()
            graph.replay()
            s.comm.all_reduce(x)
            graph.replay()
            s.sync()
            s.expect(bool((x == float(s.n) ** 3).all()), f"{x[:2]}")


@stage
def eager(s: Stage) -> None:
    """Microseconds of a 1 KB all_reduce, back to back."""
    x = s.full(512, 0, "bfloat16")
    best = issue = 1e9
    calls = 1000 if s.device != "cpu" else 50
    for _ in range(5):
        s.comm.all_reduce(x)
        s.sync()
        began = time.perf_counter()
        for _ in range(calls):
            s.comm.all_reduce(x)
        issued = time.perf_counter() - began
        s.sync()
        best = min(best, (time.perf_counter() - began) / calls * 1e6)
        issue = min(issue, issued / calls * 1e6)
    s.said["eager_us"], s.said["issue_us"] = round(best, 2), round(issue, 2)
    s.expect(True, "")


@stage
def different(s: Stage) -> None:
    """Ranks that call different things are told so, and nothing hangs."""
    x = s.full(1000 + (s.rank == 0), 1)
    try:
        s.comm.all_reduce(x)
        if s.device != "cpu":
            s.torch.cuda.synchronize()
            time.sleep(0.3)
        s.comm.check()
        s.expect(False, "nothing was raised")
    except CommunicationError as e:
        s.said["error"] = text = f"{type(e).__name__}: {e}"[:900]
        named = [f"all_reduce of {count} float32" in text for count in (1000, 1001)]
        s.expect(all(named), f"both calls are to be named: {text}")
