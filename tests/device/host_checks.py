"""What ranks on several hosts are asked to do on GPUs; hosts.py runs it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from hosted import Hosted, check

from stretto.errors import CallError, CommunicationError, StrettoError
from stretto.program import algorithms
from stretto.program.collectives import DTYPES, Operator
from stretto.program.collectives import check as check_type

COUNTS = (1, 4099, (1 << 18) + 3)
GOAL_US = 3.0
"""Of the thread, for a request."""


def _inputs(s: Hosted, count: int, seed: int) -> list[Any]:
    return [s.given(q, count, seed) for q in range(s.n)]


def _verb(s: Hosted, name: str, count: int, seed: int, **how: Any) -> None:
    """Make one call, and compare with NumPy."""
    n, me, dtype = s.n, s.rank, how.pop("dtype", "float32")
    shift = how.pop("shift", 0)
    text = f"{name} {count} {dtype} {how or ''}"
    width = count * (n if name in ("reduce_scatter", "all_to_all") else 1)
    all_of = _inputs(s, width, seed)
    x = s.put(all_of[me], dtype, shift)
    total = np.sum(all_of, axis=0)
    if name == "all_reduce":
        s.comm.all_reduce(x, **how)
        out, want = x, total
    elif name == "all_gather":
        out, want = s.room(count * n, dtype), np.concatenate(all_of)
        s.comm.all_gather(x, out=out, **how)
    elif name == "reduce_scatter":
        out, want = s.room(count, dtype), total[me * count : (me + 1) * count]
        s.comm.reduce_scatter(x, out=out, **how)
    elif name == "all_to_all":
        out = s.room(width, dtype)
        want = np.concatenate([v[me * count : (me + 1) * count] for v in all_of])
        s.comm.all_to_all(x, out=out, **how)
    elif name == "permute":
        out, want = s.room(count, dtype), all_of[(me - 1) % n]
        s.comm.permute(x, [(r, (r + 1) % n) for r in range(n)], out=out, **how)
    else:
        return _rooted(s, name, (count, dtype, text), all_of, **how)
    s.sync()
    s.due(text, want, out)
    return None


def _rooted(
    s: Hosted, name: str, call: tuple[int, str, str], all_of: list[Any], **how: Any
) -> None:
    count, dtype, text = call
    me, n = s.rank, s.n
    root = how.setdefault("root", n - 1)
    if name == "broadcast":
        x = s.put(all_of[me], dtype)
        s.comm.broadcast(x, **how)
        out, want = x, all_of[root]
    elif name == "reduce":
        out, want = s.room(count, dtype), np.sum(all_of, axis=0)
        s.comm.reduce(s.put(all_of[me], dtype), out=out if me == root else None, **how)
    elif name == "gather":
        out, want = s.room(count * n, dtype), np.concatenate(all_of)
        s.comm.gather(s.put(all_of[me], dtype), out=out if me == root else None, **how)
    else:
        assert name == "scatter", name
        out, want = s.room(count, dtype), all_of[me]
        whole = s.put(np.concatenate(all_of), dtype) if me == root else None
        s.comm.scatter(whole, out=out, **how)
    s.sync()
    if name in ("broadcast", "scatter") or me == root:
        s.due(text, want, out)


EVERY = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "permute",
         "broadcast", "reduce", "gather", "scatter")  # fmt: skip


@check(6)
def verbs(s: Hosted) -> None:
    """Every verb, on odd sizes and from every place in memory."""
    s.said["hosts"] = list(s.comm.hosts)
    s.said["explain"] = s.comm.explain(
        "all_reduce", 4096, device="cpu" if s.device == "cpu" else "cuda"
    )
    s.compile([(name, c, "float32", "sum", None) for name in EVERY for c in COUNTS])
    for seed, count in enumerate(COUNTS):
        for name in EVERY:
            _verb(s, name, count, seed)
    for name in ("all_reduce", "all_gather"):
        _verb(s, name, 4099, 9, shift=1)
    for _ in range(5):
        s.comm.barrier()


@check(6)
def graphs(s: Hosted) -> None:
    """Captured calls are replayed, mixed with eager ones, on fresh data."""
    if s.device == "cpu":
        return
    torch, n = s.torch, s.n
    x, part = s.room(70001), s.room(3001)
    whole = s.room(3001 * n)

    def body() -> None:
        s.comm.all_reduce(x)
        s.comm.all_gather(part, out=whole)

    body()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        body()
    for turn in range(20):
        all_of = [s.given(q, 70001, turn) for q in range(n)]
        x.copy_(torch.from_numpy(all_of[s.rank]))
        part.fill_(s.rank + turn)
        graph.replay()
        if turn % 3 == 0:
            s.comm.all_reduce(x)
        s.sync()
        s.due(f"replay {turn}", np.sum(all_of, axis=0) * n ** (turn % 3 == 0), x)
        s.due(f"replay {turn}, gather", np.repeat(np.arange(n) + turn, 3001), whole)


@check(6)
def requests(s: Hosted) -> None:
    """The thread's part of a far put, for 8 bytes to 64 KB; the goal is 3 us."""
    if s.device == "cpu":
        return
    rows: dict[str, Any] = {}
    for nbytes in (8, 1 << 10, 8 << 10, 64 << 10):
        x = s.put([1.0] * (nbytes // 4))
        for _ in range(100):
            s.comm.all_reduce(x, op="max")
        s.sync()
        times = s.comm._session("cuda").far.server.times_ns
        rows[f"{nbytes} B"] = {
            "least_us": round(min(times) / 1e3, 2),
            "median_us": round(statistics.median(times) / 1e3, 2),
        }
    s.said["thread_us"] = rows
    s.said["reached"] = {k: v["median_us"] <= GOAL_US for k, v in rows.items()}


@check(6)
def unequal(s: Hosted) -> None:
    """Unequal parts, known on the host."""
    n, me = s.n, s.rank
    counts = [257 * q + 1 for q in range(n)]
    parts = [s.given(q, counts[q], 4) for q in range(n)]
    got = s.comm.all_gather_v(s.put(parts[me]), counts)
    s.sync()
    s.due("all_gather_v", np.concatenate(parts), s.torch.as_tensor(got))
    wholes = [s.given(q, sum(counts), 5) for q in range(n)]
    start = sum(counts[:me])
    got = s.comm.reduce_scatter_v(s.put(wholes[me]), counts)
    s.sync()
    total = np.sum(wholes, axis=0)[start : start + counts[me]]
    s.due("reduce_scatter_v", total, s.torch.as_tensor(got))
    got = s.comm.gather_v(s.put(parts[me]), counts, root=n - 1)
    s.sync()
    if me == n - 1:
        s.due("gather_v", np.concatenate(parts), s.torch.as_tensor(got))
    matrix = [[17 * q + 5 * r + 1 for r in range(n)] for q in range(n)]
    sent = [s.given(q, sum(matrix[q]), 6) for q in range(n)]
    want = [sent[q][sum(matrix[q][:me]) : sum(matrix[q][: me + 1])] for q in range(n)]
    got = s.comm.all_to_all_v(s.put(sent[me]), matrix)
    s.sync()
    s.due("all_to_all_v", np.concatenate(want), s.torch.as_tensor(got))


@check(6)
def messages(s: Hosted) -> None:
    """Send and recv to the next rank and to the rank across; values."""
    n, me = s.n, s.rank
    for away in (1, n // 2):
        for count in (3, 70001):
            x, got = s.put(np.full(count, me + 1)), s.room(count)
            first = (me // away) % 2 == 0
            turns: list[Callable[[], Any]] = [
                lambda x=x, away=away: s.comm.send(x, to=(me + away) % n),
                lambda got=got, away=away: s.comm.recv(got, source=(me - away) % n),
            ]
            for turn in turns if first else turns[::-1]:
                turn()
            s.sync()
            text = f"recv of {count} from {away} away"
            s.due(text, np.full(count, (me - away) % n + 1), got)
    said = s.comm.all_gather_object({"rank": me})
    s.expect(said == [{"rank": q} for q in range(n)], f"objects: {said}")


@check(6)
def parts(s: Hosted) -> None:
    """Communicators of some ranks: of one host, and across."""
    for color in (s.comm.hosts[s.rank], s.rank % 2):
        part = s.comm.split(color)
        x = s.put(np.full(1000, s.rank))
        part.all_reduce(x)
        s.sync()
        peers = s.comm.all_gather_object(color)
        want = sum(q for q in range(s.n) if peers[q] == color)
        s.due(f"split by {color}", np.full(1000, want), x)
        part.close()


@check(6)
def catalogue(s: Hosted) -> None:
    """Every shipped algorithm, by packets or in bulk in turn, with two blocks."""
    refused, pins = [], []
    for name in algorithms.names():
        one = algorithms.get(name)
        if one.collective not in EVERY or one.refuses(s.n) or one.kernel is not None:
            continue
        word = "bulk" if len(pins) % 2 else "packets"  # the other way is the CPU's
        pins.append((one.collective, f"{name} push {word} blocks=2"))
    s.compile([(verb, 1003, "float32", "sum", pin) for verb, pin in pins])
    for verb, pin in pins:
        if s.late():
            s.said["not_run_from"] = pin
            break
        try:
            _verb(s, verb, 1003, 8, algorithm=pin)
        except CommunicationError:
            raise
        except StrettoError as e:  # on every rank alike: plans are made alike
            refused.append(f"{pin}: {e}"[:160])
    s.said["refused"] = refused


@check(6)
def streams(s: Hosted) -> None:
    """Streams at once, each with flags of its own; more in turn."""
    if s.device == "cpu":
        return
    torch = s.torch
    sides = [torch.cuda.Stream() for _ in range(5)]
    arrays = [s.put(np.full(3000 + i, s.rank + i)) for i in range(5)]
    torch.cuda.synchronize()
    for _ in range(10):
        for x, side in zip(arrays, sides, strict=True):
            s.comm.all_reduce(x, op="max", stream=side)
    s.sync()
    for i, x in enumerate(arrays):
        s.due(f"stream {i}", np.full(3000 + i, s.n - 1 + i), x)


@check(6)
def large(s: Hosted) -> None:
    """More than staging holds: many tiles and epochs."""
    for name in ("all_reduce", "all_gather", "all_to_all"):
        _verb(s, name, (1 << 21) + 5, 3)


@check(6)
def fused(s: Hosted) -> None:
    """A residual and RMSNorm after the sum, in the collective's kernel."""
    if s.device == "cpu":
        return
    import stretto.torch as st

    torch, rows, row = s.torch, 8, 512
    all_of = [s.given(q, rows * row, 1).reshape(rows, row) for q in range(s.n)]
    x = s.put(all_of[s.rank].reshape(-1)).view(rows, row)
    residual = torch.ones(rows, row, device=s.device)
    weight = torch.full((row,), 2.0, device=s.device)
    out = st.all_reduce_rmsnorm(x, residual, weight, 1e-6, s.comm)
    s.sync()
    total = np.sum(all_of, axis=0) + 1
    scale = np.sqrt((total**2).mean(axis=1, keepdims=True) + 1e-6)
    want = total / scale * 2
    near = np.abs(out[0].cpu().double().numpy() - want).max()
    s.expect(bool(near < 1e-4), f"off by {near}")


@check(6)
def different(s: Hosted) -> None:
    """Ranks that call different things are told so, on every host."""
    x = s.put(np.ones(1000 + (s.rank == 0)))
    try:
        s.comm.all_reduce(x)
        if s.device != "cpu":
            s.torch.cuda.synchronize()
            time.sleep(0.5)
        s.comm.check()
        s.expect(False, "nothing was raised")
    except CommunicationError as e:
        s.said["error"] = text = f"{type(e).__name__}: {e}"[:600]
        s.expect("all_reduce" in text, text)


@check(6)
def absent(s: Hosted) -> None:
    """A rank on another host that does not come is named at the deadline."""
    s.comm.deadline_s = 3.0
    x = s.put(np.ones(1000))
    s.comm.all_reduce(x)
    s.sync()
    began = time.monotonic()
    try:
        if s.rank == s.n - 1:
            time.sleep(6.0)
            s.comm.check()
        else:
            s.comm.all_reduce(x)
            if s.device != "cpu":
                s.torch.cuda.synchronize()
                time.sleep(0.5)
        s.comm.check()
        s.expect(s.rank == s.n - 1 and s.device == "cpu", "nothing was raised")
    except CommunicationError as e:
        s.said["error"] = text = f"{type(e).__name__}: {e}"[:600]
        s.expect(f"rank {s.n - 1}" in text or str(s.n - 1) in text, text)
        s.expect(time.monotonic() - began < 12, "it took too long")


@check(6)
def speed(s: Hosted) -> None:
    """Microseconds of all_reduce, back to back, by size."""
    rows: dict[str, float] = {}
    for nbytes, calls in (
        (1 << 10, 200),
        (64 << 10, 100),
        (1 << 20, 30),
        (16 << 20, 5),
    ):
        x = s.put([0.0] * (nbytes // 4))
        best = 1e9
        for _ in range(3):
            s.comm.all_reduce(x)
            s.sync()
            began = time.perf_counter()
            for _ in range(calls):
                s.comm.all_reduce(x)
            s.sync()
            best = min(best, (time.perf_counter() - began) / calls * 1e6)
        rows[f"{nbytes} B"] = round(best, 1)
    s.said["all_reduce_us"] = rows


@check(6)
def types(s: Hosted) -> None:
    """Every element type with a sum or a maximum; what only moves, in one of each."""
    cases = []
    for dtype in DTYPES:
        for op in (Operator.SUM, Operator.MAX):
            try:
                check_type(op, dtype)
            except CallError:
                continue
            if hasattr(s.torch, dtype):
                cases.append((dtype, op))
    for nth, (dtype, op) in enumerate(cases):
        if nth % 4 == 0:  # some at a time, as time may be short
            if s.late():
                s.said["not_run_from"] = dtype
                break
            some = cases[nth : nth + 4]
            s.compile([("all_reduce", 515, d, o.value, None) for d, o in some])
        all_of = _inputs(s, 515, nth)
        if dtype.startswith("float8"):  # eight is the last of all whole numbers
            all_of = [np.minimum(values, 8 // s.n) for values in all_of]
        x = s.put(all_of[s.rank], dtype)
        s.comm.all_reduce(x, op.value)
        s.sync()
        want = np.max(all_of, axis=0) if op is Operator.MAX else sum(all_of)
        if dtype == "bool":
            want = np.minimum(want, 1)
        s.due(f"all_reduce {op.value} {dtype}", want, x)
