"""Job traces from a seed: who comes when, with which model, on how many workers.

`poisson` jobs come at a load: the workers they keep busy, alone, over those there are.
`burst` jobs come all within a minute, into a cluster that is then full.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from stretto.errors import CallError
from stretto.network.jobs import profiles
from stretto.network.jobs.job import Job
from stretto.network.jobs.reader import MOST_JOBS

__all__ = ["KINDS", "generate"]

KINDS = ("poisson", "burst")
_WORKERS = ((2, 0.3), (3, 0.2), (4, 0.3), (6, 0.1), (8, 0.1))
_BURST_MS = 60_000.0


def generate(
    *,
    servers: int,
    load: float = 0.9,
    hours: float = 1.0,
    seed: int = 0,
    kind: str = "poisson",
    jitter: float = 0.01,
    mean_s: float = 300.0,
    names: Sequence[str] = (),
) -> tuple[Job, ...]:
    """Return jobs for so many servers, of `names` of profiles: all of them if none.

    How long jobs take alone is spread log-normally about `mean_s`.
    """
    if kind not in KINDS:
        raise CallError(f"kind {kind!r}; want {' or '.join(KINDS)}")
    for what, value, most in (("load", load, 10), ("hours", hours, 10_000)):
        if not 0 < value <= most:
            raise CallError(f"{what}: got {value:g}; want more than 0, at most {most}")
    if servers < 2:
        raise CallError(f"servers: got {servers}; want at least 2")
    draw = random.Random(f"jobs {seed}")
    known = tuple(names) or profiles.names()
    sizes = [(n, share) for n, share in _WORKERS if n <= servers]
    found: list[Job] = []
    end_ms, at = hours * 3.6e6, 0.0
    spread = 0.8
    centre = math.log(mean_s * 1e3) - spread * spread / 2
    while len(found) < MOST_JOBS:
        (workers,) = draw.choices(*zip(*sizes, strict=True))
        model = profiles.profile(draw.choice(known))
        takes = draw.lognormvariate(centre, spread)
        if kind == "poisson":
            per_job = sum(n * share for n, share in sizes) / sum(s for _, s in sizes)
            at += draw.expovariate(load * servers / (per_job * mean_s * 1e3))
        else:
            at = draw.uniform(0, _BURST_MS)
        once = model.job("x", iterations=1, workers=workers)
        job = model.job(
            f"{model.name}-{len(found)}",
            iterations=max(1, round(takes / once.period_ms)),
            workers=workers,
            arrives_ms=at,
            begins_ms=draw.uniform(0, once.period_ms),
            jitter=jitter,
        )
        if at > end_ms or (kind == "burst" and _full(found, servers, load)):
            break
        found.append(job)
    return tuple(sorted(found, key=lambda job: job.arrives_ms))


def _full(jobs: Sequence[Job], servers: int, load: float) -> bool:
    return sum(job.workers for job in jobs) >= load * servers
