"""Seeded calls among ranks, and what must come of each: known from the seed alone."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

COUNTS = (1, 7, 64, 1000, 20_000)
DTYPES = ("float32", "int64", "float64")
OPS = {"sum": np.add, "max": np.maximum, "min": np.minimum}


class WrongValue(AssertionError):
    """A call gave what it must not."""


def data(rank: int, turn: int, count: int, dtype: str) -> np.ndarray:
    """Return what a rank has in a turn: small whole numbers, so that sums are exact."""
    return ((np.arange(count) * 3 + rank * 5 + turn) % 7).astype(dtype)


def equal(got: Any, want: np.ndarray, what: str) -> None:
    """Check a result."""
    if not np.array_equal(got, want):
        bad = np.flatnonzero(np.ravel(got) != np.ravel(want))[:4]
        raise WrongValue(f"{what}: got {np.ravel(got)[bad]} at {bad}")


def talk(comm: Any, seed: str, turn: int, verbs: tuple[str, ...] = ()) -> str:
    """Make one call, the same on all ranks, and check what it gives; return which."""
    rng = random.Random(f"{seed}:{turn}")
    verb = rng.choice(verbs or tuple(_CALLS))
    count, dtype = rng.choice(COUNTS), rng.choice(DTYPES)
    n = comm.num_ranks
    parts = [data(r, turn, count * n, dtype) for r in range(n)]
    what = f"{verb} of {count} {dtype} in turn {turn} of rank {comm.rank}/{n}"
    _CALLS[verb](comm, rng, parts, count, what)
    return verb


def _all_reduce(comm, rng, parts, count, what):
    op = rng.choice(tuple(OPS))
    want = OPS[op].reduce([p[:count] for p in parts])
    x = parts[comm.rank][:count].copy()
    if rng.random() < 0.5:
        equal(comm.all_reduce(x, op), want, what)
    else:
        out = np.empty_like(x)
        comm.all_reduce(x, op, out=out)
        equal(out, want, what)
        equal(x, parts[comm.rank][:count], what + ", its input")


def _started(comm, rng, parts, count, what):
    x = parts[comm.rank][:count].copy()
    y = x.copy()
    one, two = comm.all_reduce_async(x), comm.all_reduce_async(y, "max")
    one.wait()
    two.wait()
    equal(x, np.add.reduce([p[:count] for p in parts]), what)
    equal(y, np.maximum.reduce([p[:count] for p in parts]), what)


def _reduce(comm, rng, parts, count, what):
    root = rng.randrange(comm.num_ranks)
    got = comm.reduce(parts[comm.rank][:count].copy(), root=root)
    if comm.rank == root:
        equal(got, np.add.reduce([p[:count] for p in parts]), what)


def _broadcast(comm, rng, parts, count, what):
    root = rng.randrange(comm.num_ranks)
    x = parts[comm.rank][:count].copy()
    equal(comm.broadcast(x, root=root), parts[root][:count], what)


def _all_gather(comm, rng, parts, count, what):
    got = comm.all_gather(parts[comm.rank][:count].copy())
    equal(got, np.stack([p[:count] for p in parts]), what)


def _gather(comm, rng, parts, count, what):
    root = rng.randrange(comm.num_ranks)
    got = comm.gather(parts[comm.rank][:count].copy(), root=root)
    if comm.rank == root:
        equal(got, np.stack([p[:count] for p in parts]), what)


def _reduce_scatter(comm, rng, parts, count, what):
    got = comm.reduce_scatter(parts[comm.rank].copy())
    mine = slice(comm.rank * count, (comm.rank + 1) * count)
    equal(got, np.add.reduce([p[mine] for p in parts]), what)


def _scatter(comm, rng, parts, count, what):
    root = rng.randrange(comm.num_ranks)
    out = np.empty(count, parts[0].dtype)
    x = parts[root].copy() if comm.rank == root else None
    comm.scatter(x, root=root, out=out)
    equal(out, parts[root][comm.rank * count : (comm.rank + 1) * count], what)


def _all_to_all(comm, rng, parts, count, what):
    got = comm.all_to_all(parts[comm.rank].copy())
    mine = slice(comm.rank * count, (comm.rank + 1) * count)
    equal(got, np.concatenate([p[mine] for p in parts]), what)


def _permute(comm, rng, parts, count, what):
    n, by = comm.num_ranks, rng.randrange(1, comm.num_ranks + 1)
    got = comm.permute(
        parts[comm.rank][:count].copy(), tuple((r, (r + by) % n) for r in range(n))
    )
    equal(got, parts[(comm.rank - by) % n][:count], what)


def _barrier(comm, rng, parts, count, what):
    comm.barrier()


def _pair(comm, rng, parts, count, what):
    n = comm.num_ranks
    a = rng.randrange(n)
    b = (a + rng.randrange(1, n)) % n if n > 1 else a
    if a != b and comm.rank == a:
        comm.send(parts[a][:count].copy(), b)
    elif a != b and comm.rank == b:
        out = np.empty(count, parts[0].dtype)
        comm.recv(out, a)
        equal(out, parts[a][:count], what)


def _registered(comm, rng, parts, count, what):
    x = comm.empty(count, parts[0].dtype)
    x[:] = parts[comm.rank][:count]
    equal(comm.all_reduce(x), np.add.reduce([p[:count] for p in parts]), what)


def _uneven(comm, rng, parts, count, what):
    n = comm.num_ranks
    counts = [rng.randrange(count + 1) for _ in range(n)]
    got = comm.all_gather_v(parts[comm.rank][: counts[comm.rank]].copy(), counts)
    want = [p[:c] for p, c in zip(parts, counts, strict=True)]
    equal(got, np.concatenate(want), what)


_CALLS = {
    "all_reduce": _all_reduce,
    "all_reduce_async": _started,
    "reduce": _reduce,
    "broadcast": _broadcast,
    "all_gather": _all_gather,
    "gather": _gather,
    "reduce_scatter": _reduce_scatter,
    "scatter": _scatter,
    "all_to_all": _all_to_all,
    "permute": _permute,
    "barrier": _barrier,
    "pair": _pair,
    "registered": _registered,
    "all_gather_v": _uneven,
}
ALL = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")
"""Calls in which every rank waits for every other."""
