"""Run an algorithm on real processes of this machine, checked against the oracle."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from stretto.cli.output import Progress, add_json, print_rows
from stretto.cli.targets import add_params, build, find, params_of
from stretto.compiler.lower import lower
from stretto.compiler.plan import Schedule
from stretto.compiler.verify import verify, verify_plan
from stretto.errors import CallError
from stretto.program import collectives
from stretto.program.collectives import Array, Operator, Shape, check, storage
from stretto.program.ir import Program
from stretto.program.lang import Algorithm
from stretto.runtime.calls import Communicator, call_of, spawn
from stretto.runtime.choice import parse_sizes, spell_size
from stretto.testing import draw, expected, largest_error, tolerance
from stretto.trace import MONOTONIC

_UNTIMED = 3
_LARGE = 8 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class RankOrders:
    """What every rank is told to run."""

    target: str
    collective: str
    schedule: str
    params: tuple[tuple[str, Any], ...]
    sizes: tuple[int, ...]
    dtype: str
    op: str
    iterations: int
    registered: bool
    seed: int

    def shape(self, num_ranks: int) -> Shape:
        """Return who takes part."""
        return Shape(num_ranks=num_ranks, params=dict(self.params))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    parser.add_argument(
        "algorithm",
        metavar="ALGORITHM",
        help="a name of `stretto list`, FILE.py:variable, or a collective's name",
    )
    add_params(parser)
    parser.add_argument("--ranks", type=int, default=4, help="processes [4]")
    parser.add_argument("--size", "--sizes", default="1M", help="such as 1K:1G:4 [1M]")
    parser.add_argument("--dtype", default="float32", help="element type [float32]")
    parser.add_argument("--op", default="sum", help="operator [sum]")
    parser.add_argument("--schedule", default="", metavar="WORDS", help="[chosen]")
    parser.add_argument("--iterations", type=int, default=20, help="timed calls [20]")
    parser.add_argument(
        "--registered", action="store_true", help="arrays of comm.empty(): zero-copy"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the inputs [0]")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Print correctness and time by size."""
    rows = measure(args)
    print_rows(args, rows, f"{args.algorithm} on {args.ranks} processes of this host")
    return 0 if all(row["ok"] for row in rows) else 1


def measure(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Return one row a size."""
    trial = _trial(args)
    with Progress(1) as progress:
        progress.step(f"{args.algorithm} on {args.ranks} processes")
        by_rank = spawn(_work, trial, num_ranks=args.ranks)
    return [_joined(trial, args, rows) for rows in zip(*by_rank, strict=True)]


def _trial(args: argparse.Namespace) -> RankOrders:
    """Return what to run, having refused here what every rank would refuse."""
    if args.ranks < 1 or args.iterations < 1:
        raise CallError(
            f"--ranks {args.ranks} --iterations {args.iterations}; want at least 1"
        )
    target, collective = args.algorithm, args.algorithm
    params = params_of(args)
    if collective not in collectives.names():
        found = find(target)
        if isinstance(found, Program):
            raise CallError(f"{target} is a program; want an algorithm, to build it")
        if reason := found.refuses(args.ranks):
            raise CallError(reason)
        collective = found.collective
        if collectives.get(collective).rooted:
            params.setdefault("root", found.root)
        if found.members:
            params.setdefault("members", found.members)
    elif "members" in params:
        raise CallError(
            f"members={params['members']} of {target}; want an algorithm of it, which "
            f"says what its members do"
        )
    if collective == "permute":
        shift = tuple((r, (r + 1) % args.ranks) for r in range(args.ranks))
        params.setdefault("pairs", shift if args.ranks > 1 else ())
    kind = collectives.get(collective)
    kind.check(Shape(num_ranks=args.ranks, params=params))
    if target != collective:
        _check_runs(build(find(target), args.ranks, params), args)
    if kind.reduces:
        check(Operator.named(args.op), args.dtype)
    storage(args.dtype)
    sizes = tuple(parse_sizes(args.size))
    _check_memory(max(sizes), args.ranks)
    return RankOrders(
        target=target,
        collective=collective,
        schedule=args.schedule,
        params=tuple(params.items()),
        sizes=sizes,
        dtype=args.dtype,
        op=args.op,
        iterations=args.iterations,
        registered=args.registered,
        seed=args.seed,
    )


def _check_runs(program: Program, args: argparse.Namespace) -> None:
    """Refuse what is not what it claims to be, and schedules that do not run it."""
    proved = verify(program)
    if not args.schedule:
        return
    schedule = Schedule.parse(args.schedule)
    if schedule.zero_copy and not args.registered:
        raise CallError(
            f"--schedule {args.schedule!r}: peers touch the arrays; want --registered, "
            "or 'staged' in it"
        )
    verify_plan(lower(proved, schedule), proved)


def _check_memory(nbytes: int, num_ranks: int) -> None:
    """Refuse what this machine cannot hold: every rank draws the inputs of all."""
    has = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if nbytes * num_ranks > has:
        raise CallError(
            f"--size {spell_size(nbytes)} of {num_ranks} ranks; this machine has "
            f"{has >> 20}M, and each rank looks at what all have; want less"
        )


def _joined(
    trial: RankOrders, args: argparse.Namespace, rows: tuple[dict[str, Any], ...]
) -> dict[str, Any]:
    """Return one row of all ranks': the slowest and the least exact count."""
    nbytes = rows[0]["nbytes"]
    times = np.array([row["times_us"] for row in rows]).max(axis=0)
    time_us = float(np.median(times))
    members = trial.shape(args.ranks).num_members
    gbps = nbytes / time_us / 1e3 if time_us else 0.0
    row = {"size": spell_size(nbytes)}
    if args.json:
        row |= {"nbytes": nbytes, "ranks": args.ranks, "dtype": trial.dtype}
    return row | {
        "ok": all(row["ok"] for row in rows),
        "max_error": max(row["error"] for row in rows),
        "time_us": time_us,
        "algbw_gbps": gbps,
        "busbw_gbps": gbps * collectives.bus_factor(trial.collective, members),
        "algorithm": rows[0]["algorithm"],
    }


def _work(comm: Communicator, trial: RankOrders) -> list[dict[str, Any]]:
    """Run all sizes on one rank."""
    pin: Any = None
    if trial.target != trial.collective:
        found = find(trial.target)
        assert isinstance(found, Algorithm), "the parent has looked"
        members = dict(trial.params).get("members", ())
        found = found if found.members == members else replace(found, members=members)
        pin = (found, trial.schedule) if trial.schedule else found
    return [_size(comm, trial, pin, nbytes) for nbytes in trial.sizes]


def _size(
    comm: Communicator, trial: RankOrders, pin: Any, nbytes: int
) -> dict[str, Any]:
    n, rank = comm.num_ranks, comm.rank
    kind = collectives.get(trial.collective)
    params = dict(trial.params)
    shape = trial.shape(n)
    item = storage(trial.dtype).itemsize
    counts = kind.equal_counts(shape, nbytes=nbytes, itemsize=item)
    op = Operator.named(trial.op) if kind.reduces else Operator.SUM
    rng = np.random.default_rng(trial.seed)
    sizes = _elements(trial.collective, shape, counts)
    inputs = [draw(rng, size, trial.dtype, op) for size in sizes]
    wants = expected(
        trial.collective, shape, inputs, dtype=trial.dtype, op=op, counts=counts
    )
    if shape.place(rank) is None:  # it only shows how large the others' are
        x, out = (_array(comm, trial, max(map(len, a))) for a in (inputs, wants))
    else:
        x, out = (_array(comm, trial, len(a[rank])) for a in (inputs, wants))
        x[...] = inputs[rank]
    call = _call(comm, trial, params, pin, x, out)
    iterations = max(3, trial.iterations // (10 if nbytes > _LARGE else 1))
    times = []
    for turn in range(_UNTIMED + iterations):
        comm.barrier()
        start_us = MONOTONIC.now_us()
        call()
        if turn >= _UNTIMED:
            times.append(MONOTONIC.now_us() - start_us)
    want = wants[rank]
    error = largest_error(out[: want.size], want, trial.dtype)
    allowed = tolerance(trial.dtype, n)
    return {
        "nbytes": nbytes,
        "ok": error <= allowed,
        "error": error,
        "times_us": times,
        "algorithm": comm.explain(
            trial.collective,
            counts[0] if counts else 0,
            trial.dtype,
            registered=trial.registered,
            algorithm=pin,
            **params,
        ),
    }


def _elements(collective: str, shape: Shape, counts: tuple[int, ...]) -> list[int]:
    """Return how many elements every rank passes; 0 where it has no input."""
    kind = collectives.get(collective)
    symbols = kind.symbol_sizes(shape, np.asarray(counts), 1)
    return [
        int(sum(symbols[r.first : r.first + r.stop - r.start].sum() for r in runs))
        for runs in (kind.input_runs(shape, q) for q in range(shape.num_ranks))
    ]


def _array(comm: Communicator, trial: RankOrders, count: int) -> Array:
    stored = storage(trial.dtype)
    if trial.registered:
        array: Array = comm.empty(count, trial.dtype)
        return array
    return np.empty(count, stored)


def _call(
    comm: Communicator,
    trial: RankOrders,
    params: dict[str, Any],
    pin: Any,
    x: Any,
    out: Any,
) -> Any:
    """Return a function that makes the call once, on flat arrays."""
    options = {"algorithm": pin, "dtype": trial.dtype, "op": trial.op, **params}
    return call_of(comm, trial.collective, x, out, **options)
