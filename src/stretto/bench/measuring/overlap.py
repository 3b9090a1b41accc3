"""How much computing hides a collective: started, computed beside, waited for.

As the OSU benchmarks have it: the time of the call alone, then of the call with as much
computing as that beside it. What is hidden is 1 - (both - computing) / alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from stretto.bench.workload.timing import run_batch

__all__ = ["Overlap", "compute_for", "hidden", "overlapped"]

_SIDE = 48


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """The times of one batch, a call."""

    alone_us: float
    compute_us: float
    both_us: float


def hidden(times: Overlap) -> float:
    """Return the share of the call that computing hid, 0 to 1."""
    if not times.alone_us > 0:
        return 0.0
    share = 1 - (times.both_us - times.compute_us) / times.alone_us
    return max(0.0, min(1.0, share))


def compute_for(duration_us: float) -> Callable[[], Any]:
    """Return a computation of about that long; it lets go of the interpreter."""
    a = np.ones((_SIDE, _SIDE), np.float32)
    out = np.empty_like(a)
    once_us = run_batch(lambda: np.matmul(a, a, out=out), 200)
    turns = max(1, round(duration_us / max(once_us, 0.01)))

    def compute() -> None:
        for _ in range(turns):
            np.matmul(a, a, out=out)

    return compute


def overlapped(
    start: Callable[[], Any],
    compute: Callable[[], Any],
    turns: int,
    barrier: Callable[[], Any],
    settle: Callable[[], Any] | None = None,
) -> Overlap:
    """Return the times of a started call alone, of computing, and of both.

    On a GPU both are only enqueued, on streams of their own; `settle` waits for them.
    """

    def alone() -> None:
        start().wait()

    def both() -> None:
        work = start()
        compute()
        work.wait()

    barrier()
    alone_us = run_batch(alone, turns, settle=settle)
    barrier()
    compute_us = run_batch(compute, turns, settle=settle)
    barrier()
    both_us = run_batch(both, turns, settle=settle)
    return Overlap(alone_us=alone_us, compute_us=compute_us, both_us=both_us)
