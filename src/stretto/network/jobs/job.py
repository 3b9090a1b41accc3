"""A job: an iteration is steps of computing and then communicating, again and again.

What a worker sends it sends at most at `gbits_per_s`, its demand: that is what overlap
with computing leaves of a fast link. Times are milliseconds, sizes 10^6 bytes.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from stretto.errors import CallError, UnknownNameError

__all__ = ["Job", "JobStep", "Phase", "WorkerSend"]

_VOLUMES = {
    "all_reduce": ("ring", 2.0),
    "all_gather": ("ring", 1.0),
    "reduce_scatter": ("ring", 1.0),
    "all_to_all": ("pairs", 1.0),
    "ring": ("ring", 0.0),
    "pairs": ("pairs", 0.0),
    "chain": ("chain", 0.0),
}
"""Who sends to whom, and how often (n-1)/n of the size each does; 0: just the size."""
MOST_WORKERS = 4096
LONGEST_MS = 1e7
USUAL_GBITS_PER_S = 40.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSend:
    """What one worker sends to another in a phase, by their places in the job."""

    src: int
    dst: int
    mbytes: float
    gbits_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """Computing, then communicating, for one number of workers."""

    compute_ms: float
    up_ms: float
    """How long the sends take when nobody is in their way."""
    sends: tuple[WorkerSend, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStep:
    """Computing, then a collective; `collective` may be a catalogued plan's name."""

    compute_ms: float
    collective: str = "ring"
    mbytes: float = 0.0
    """The full vector; of `ring`, `pairs` and `chain` what every worker sends."""
    gbits_per_s: float = USUAL_GBITS_PER_S
    pairs: tuple[tuple[int, int, float], ...] = ()
    """Who sends what to whom among all workers, as a plan says (`plans.resolved`)."""

    def phase(self, workers: int) -> Phase:
        """Return the phase for so many workers."""
        sizes = dict[tuple[int, int], float]()
        if self.pairs and workers == 1 + max(a for a, _, _ in self.pairs):
            sizes = {(a, b): mbytes for a, b, mbytes in self.pairs}
        elif workers > 1 and self.mbytes > 0:
            name = self.collective.partition("/")[0]
            if name not in _VOLUMES:
                raise UnknownNameError.among("collective", self.collective, _VOLUMES)
            pattern, times = _VOLUMES[name]
            each = self.mbytes * (times * (workers - 1) / workers if times else 1.0)
            sizes = _pattern(pattern, workers, each)
        out: dict[int, float] = {}
        for (src, _), mbytes in sizes.items():
            out[src] = out.get(src, 0.0) + mbytes
        up_ms = max(out.values(), default=0.0) * 8 / self.gbits_per_s
        sends = tuple(
            WorkerSend(src=a, dst=b, mbytes=mbytes, gbits_per_s=mbytes * 8 / up_ms)
            for (a, b), mbytes in sorted(sizes.items())
        )
        return Phase(compute_ms=self.compute_ms, up_ms=up_ms, sends=sends)


def _pattern(name: str, n: int, mbytes: float) -> dict[tuple[int, int], float]:
    if name == "pairs":
        each = mbytes / (n - 1)
        return {(a, b): each for a in range(n) for b in range(n) if a != b}
    last = n if name == "ring" else n - 1
    return {(i, (i + 1) % n): mbytes for i in range(last)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Somebody's training: steps of an iteration, how often, and on how many ranks."""

    name: str
    steps: tuple[JobStep, ...]
    workers: int
    iterations: int
    arrives_ms: float = 0.0
    begins_ms: float = 0.0
    """How much later than it could its first iteration begins: its phase."""
    jitter: float = 0.0
    """The deviation of a computing time, as a share of it."""
    ranks: tuple[int, ...] = ()
    """Where it must run; nowhere in particular if empty."""
    noise: float = math.inf
    """Pollux's noise scale, in batches of all its workers: what larger ones are worth.
    Infinity: twice the workers do twice the work."""
    profile: str = ""

    def __post_init__(self) -> None:
        """Refuse what is not a job."""
        checks = (
            ("workers", self.workers, 1, MOST_WORKERS),
            ("iterations", self.iterations, 1, 1e9),
            ("arrives_ms", self.arrives_ms, 0, 1e15),
            ("begins_ms", self.begins_ms, 0, 1e12),
            ("jitter", self.jitter, 0, 1),
            ("noise", self.noise, 1e-9, math.inf),
        )
        for field, value, least, most in checks:
            if not least <= value <= most:
                raise CallError(
                    f"job {self.name}, {field}: got {value:g}; want {least:g} to "
                    f"{most:g}"
                )
        if self.ranks and len(set(self.ranks)) != self.workers:
            raise CallError(
                f"job {self.name}, ranks: got {list(self.ranks)[:20]}; want "
                f"{self.workers} different ones, one a worker"
            )
        for step in self.steps:
            for field in ("compute_ms", "mbytes"):
                if not 0 <= getattr(step, field) < math.inf:
                    got = getattr(step, field)
                    raise CallError(
                        f"job {self.name}, {field}: got {got:g}; want 0 or more"
                    )
            if not 0 < step.gbits_per_s < math.inf:
                raise CallError(
                    f"job {self.name}, gbits_per_s: got {step.gbits_per_s:g}; want a "
                    "rate above 0"
                )
        if not 0 < self.period_ms <= LONGEST_MS:
            raise CallError(
                f"job {self.name}: its iteration takes {self.period_ms:g} ms; want more"
                f" than 0, at most {LONGEST_MS:g}"
            )

    @property
    def period_ms(self) -> float:
        """Return how long an iteration takes when the job is alone."""
        return self.period_of(self.workers)

    def phases(self, workers: int) -> tuple[Phase, ...]:
        """Return its phases for a number of workers."""
        return _phases(self.steps, workers)

    def period_of(self, workers: int) -> float:
        """Return how long an iteration of so many workers takes alone."""
        return sum(p.compute_ms + p.up_ms for p in self.phases(workers))

    def work_of(self, workers: int) -> float:
        """Return what an iteration of so many workers is worth, of one of all."""
        batch = workers / self.workers
        if math.isinf(self.noise):
            return batch
        return batch * (self.noise + 1) / (self.noise + batch)

    @property
    def alone_ms(self) -> float:
        """Return how long all of it takes when it is alone."""
        return self.iterations * self.period_ms


@functools.lru_cache(maxsize=4096)
def _phases(steps: tuple[JobStep, ...], workers: int) -> tuple[Phase, ...]:
    return tuple(step.phase(workers) for step in steps)
