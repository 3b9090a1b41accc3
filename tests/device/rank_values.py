"""Checks of values: every shipped algorithm, each protocol, bit for bit."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from ranked import Bound, Rank, check, verdict

from stretto.compiler.lower import lower
from stretto.compiler.plan import Schedule
from stretto.compiler.verify import verify, verify_plan
from stretto.errors import StrettoError
from stretto.executors.cuda.codegen.compile import compile_kernel
from stretto.executors.cuda.codegen.generate import kernel_of
from stretto.program import algorithms

__all__ = ["KERNELS", "compile_one", "compiled_ahead"]

KERNELS = (
    "push packets staged blocks=4 threads=256",
    "push bulk staged blocks=4 threads=256 tile_bytes=65536",
    "pull bulk staged blocks=4 threads=256 tile_bytes=65536",
    "push bulk zero_copy blocks=4 threads=256",
    "pull bulk zero_copy blocks=4 threads=256",
)
BY_HALVES = ("pull bulk zero_copy copy:engine+push blocks=2 threads=256",)
"""A kernel, then copies of its results."""
SERVED = {"all_gather/one_shot", "all_reduce/two_shot", "broadcast/flat"}
"""Some of the algorithms that can be run so."""
ASKEW = (KERNELS[4], KERNELS[3], KERNELS[0], KERNELS[1])
"""Under which arrays begin an element late."""
LEFT_S = 2.0
"""With less time than this left, no more plans are tried."""


def _values(
    r: Rank,
    schedules: Sequence[str],
    sizes: Sequence[int],
    *,
    askew: bool = False,
    once: bool = False,
) -> Any:
    """Run every algorithm under schedules; one that breaks is noted and passed over.

    With `once`, each under one of them, in turn.
    """
    r.open(6.0)
    found, refused = [], []
    plans: set[tuple[str, str]] = set()
    pairs = list(in_turn(r.n, schedules))
    if once:
        pairs = pairs[: len(pairs) // len(schedules)]
    jobs = list(itertools.product(sizes, pairs))
    for done, (count, (name, schedule)) in enumerate(jobs):
        if r.late(LEFT_S):
            return {**_said(found, refused, plans), "not_run": len(jobs) - done}
        try:
            bound = Bound(r, name, schedule, count, askew=askew)
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
    return _said(found, refused, plans)


def _said(
    found: list[str], refused: list[str], plans: set[tuple[str, str]]
) -> dict[str, Any]:
    served = sorted({name for name, _ in plans})
    kept = {"refused": refused, "plans": len(plans), "served": served}
    return {**verdict(found), **kept}


def in_turn(n: int, schedules: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield every algorithm under every schedule; first each algorithm under one."""
    names = [a for a in algorithms.names() if algorithms.get(a).refuses(n) is None]
    for turn in range(len(schedules)):
        for nth, name in enumerate(names):
            yield name, schedules[(nth + turn) % len(schedules)]


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


@check(3)
def engines(r: Rank) -> Any:
    """Copy engines, one and three streams."""
    schedules = [f"push engine zero_copy blocks={k}" for k in (1, 3)]
    return _values(r, schedules, (4099, 1 << 19))


@check(4)
def values(r: Rank) -> Any:
    """Every shipped algorithm, each protocol, bit for bit."""
    return _values(r, KERNELS[:1] if r.shared else KERNELS, (4099,))


@check(4)
def values_zero_copy(r: Rank) -> Any:
    """Zero-copy kernels between processes."""
    return _values(r, KERNELS[3:], (999,)) if r.shared else {}


@check(4)
def values_by_halves(r: Rank) -> Any:
    """Kernels reduce and copy engines hand round; other algorithms are refused."""
    said = _values(r, BY_HALVES, (1, 4099, 70001))
    missing = SERVED - set(said["served"])
    assert not missing or "not_run" in said, f"refused: {missing}"
    return said


@check(4)
def values_askew(r: Rank) -> Any:
    """Arrays that begin an element late, on all ranks or on some."""
    return _values(r, ASKEW, (4099,), askew=True, once=True)


@check(4)
def values_large(r: Rank) -> Any:
    """A few megabytes, several tiles."""
    return {} if r.shared else _values(r, KERNELS[1:], (1 << 19,))


def compile_one(job: tuple[str, str, int, int]) -> None:
    """Compile one kernel of `values` into the disk cache; refusals come up later."""
    name, schedule, rank, n = job
    params: dict[str, object] = {}
    if name.startswith("permute/"):
        params = {"pairs": tuple((r, (r + 1) % n) for r in range(n))}
    try:
        program = algorithms.get(name).build(n, **params)
        plan = verify_plan(lower(verify(program), Schedule.parse(schedule)))
        compile_kernel(kernel_of(plan, rank=rank, dtype="bfloat16"), arch=(9, 0))
    except StrettoError:
        return


def compiled_ahead(
    n: int, shared: bool, checks: Sequence[str]
) -> Iterator[tuple[str, str, int, int]]:
    """Yield the kernels that some of these checks run, in their order."""
    found: list[tuple[str, str]] = []
    if {"values", "values_zero_copy", "values_large"} & {*checks}:
        found += in_turn(n, (KERNELS[0], *KERNELS[3:]) if shared else KERNELS)
    if "values_by_halves" in checks:
        found += in_turn(n, BY_HALVES)
    if "values_askew" in checks:
        askew = list(in_turn(n, ASKEW))
        found += askew[: len(askew) // len(ASKEW)]
    for name, schedule in found:
        for rank in range(n):
            yield name, schedule, rank, n
