"""How much computing hides a collective: started, computed beside, waited for.

As the OSU benchmarks have it: the time of the call alone, then of the call with as much
computing as that beside it. What is hidden is 1 - (both - computing) / alone.
"""

from __future__ import annotations

import contextlib

import numpy as np

from stretto.bench.contender import Contender
from stretto.bench.measuring.control import Control
from stretto.bench.measuring.target import Pools
from stretto.bench.timing import Call, run_batch
from stretto.bench.workload.cases import CallCase
from stretto.errors import CallError

_SIDE = 48
_OVERLAPS = 9
_OVERLAP_US = 2e3


def hidden_share(
    control: Control, pools: Pools, case: CallCase, contender: Contender, us: float
) -> float | None:
    """Return the share of a call of so long that computing hides, the worst rank's.

    None where a call cannot be started on every rank.
    """
    start = None
    with contextlib.suppress(CallError):
        start = contender.start(case, *pools.buffers(case))
    everywhere = all(control.gather(start is not None))
    if start is None or not everywhere:
        return None
    us = control.agree(us)
    compute = (pools.compute_for or _compute_for)(us)
    turns = control.agree(max(1, min(200, int(_OVERLAP_US / max(us, 1.0)))))
    shares = [_hidden(control, start, compute, turns, pools) for _ in range(_OVERLAPS)]
    return float(min(control.gather(sorted(shares)[len(shares) // 2])))


def _hidden(
    control: Control, start: Call, compute: Call, turns: int, pools: Pools
) -> float:
    """Return the share in a batch, 0 to 1.

    On a GPU both are only enqueued, on streams of their own; `settle` waits for them.
    """

    def alone() -> None:
        start().wait()

    def both() -> None:
        work = start()
        compute()
        work.wait()

    found = []
    for call in (alone, compute, both):
        control.barrier()
        found.append(run_batch(call, turns, settle=pools.settle))
    alone_us, compute_us, both_us = found
    share = 1 - (both_us - compute_us) / alone_us if alone_us > 0 else 0.0
    return max(0.0, min(1.0, share))


def _compute_for(duration_us: float) -> Call:
    """Return a computation of about that long; it lets go of the interpreter."""
    a = np.ones((_SIDE, _SIDE), np.float32)
    out = np.empty_like(a)
    once_us = run_batch(lambda: np.matmul(a, a, out=out), 200)
    turns = max(1, round(duration_us / max(once_us, 0.01)))

    def compute() -> None:
        for _ in range(turns):
            np.matmul(a, a, out=out)

    return compute
