"""An agent a group of jobs: it watches them, paces them, and lets go when that is vain.

A shift given once is gone after a few iterations, as computing times are never the
same. So each job keeps to a grid whose period is a little longer than its iteration:
who is early waits for its slot, who is late goes at once and has caught up soon. How
much longer follows from what the agent has seen, and is tried in a rehearsal of the
group, beside leaving the jobs alone. When pacing does not gain there, or turns out not
to, the jobs are left alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from stretto.network.cassini.groups import JobGroup
from stretto.network.cassini.shifts import Shifts, score
from stretto.runtime.pace import Grid

__all__ = ["Agent", "Rehearsal", "Rehearse", "chance", "grids"]

_WATCHED = 8
"""Iterations of every job that an agent looks at before it decides."""
_PADS = (0.7, 1.2, 1.75, 2.5, 3.5)
"""How much longer a period is made, in deviations of an iteration."""
_LEAST_PAD = 0.001
_DRAWS = 24
_GAIN = 0.003
"""What pacing must gain in a rehearsal, of the time of an iteration."""
_JUDGED = 25
"""Iterations of every job after which an agent looks whether it was right."""
_FIRST_PAD, _FIRST_GAIN = 0.01, 0.03
"""What a group is paced with before it was watched, if it scores that much better so
than with shifts drawn at random."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """A group of jobs, as it was seen, to be tried."""

    group: JobGroup
    deviations: Mapping[str, float]
    """By job, that of its computing times, as a share of them."""
    pad: float | None
    """How much longer periods are; None: the jobs are left alone, at any phases."""


Rehearse: TypeAlias = Callable[[Rehearsal], float]
"""Returns how much slower than alone iterations are, on the mean."""


def grids(group: JobGroup, pad: float, origin_us: float) -> dict[str, Grid]:
    """Return the slots of the jobs of a group."""
    found = {}
    for index, name in enumerate(group.names):
        shift, period = group.slots_ms(index)
        longer = 1e3 * (1 + pad)
        found[name] = Grid(origin_us + shift * longer, period * longer)
    return found


class Agent:
    """What is done for one group, in the simulator or beside real jobs."""

    def __init__(self, group: JobGroup, rehearse: Rehearse) -> None:
        self.group, self._rehearse = group, rehearse
        self._gain = group.fit.score - chance(group.fit)
        self.is_pacing, self.is_decided = self._gain > _FIRST_GAIN, False
        self._grids: dict[str, Grid] = {}
        self._pad, self._free = _FIRST_PAD, math.inf
        self._computed: dict[str, list[float]] = {name: [] for name in group.names}
        self._slow: dict[str, list[float]] = {name: [] for name in group.names}

    def start(self, name: str, ready_us: float) -> float:
        """Return when a job that is ready to send may do so."""
        if not self.is_pacing:
            return ready_us
        if not self._grids:  # the first that is ready need not wait
            self._grids = grids(self.group, self._pad, 0.0)
            first = self._grids[name].origin_us
            for grid in self._grids.values():
                grid.origin_us += ready_us - first
        return self._grids[name].start(ready_us)

    def ended(self, name: str, computed: float, slowdown: float) -> None:
        """Hear what an iteration, and its computing, took over what they should."""
        self._computed[name].append(computed)
        self._slow[name].append(slowdown)
        if not self.is_decided:
            if all(len(seen) >= _WATCHED for seen in self._computed.values()):
                self._decide()
        elif self.is_pacing and all(len(s) >= _JUDGED for s in self._slow.values()):
            self._judge()

    def _decide(self) -> None:
        """Try the group with several pads, and without any."""
        self.is_decided, group = True, self.group
        deviations = {
            name: float(np.std(seen, ddof=1)) for name, seen in self._computed.items()
        }

        def tried(pad: float | None) -> float:
            return self._rehearse(
                Rehearsal(group=group, deviations=deviations, pad=pad)
            )

        share = 0.0
        for job, ranks in zip(group.jobs, group.ranks, strict=True):
            computing = sum(p.compute_ms for p in job.phases(len(ranks)))
            varies = deviations[job.name] * computing / job.period_of(len(ranks))
            share = max(share, varies)
        self._free = tried(None) if self._gain > _GAIN else 1.0
        stretch, took = group.fit.problem.circle.stretch, {}
        for pad in dict.fromkeys(max(_LEAST_PAD, times * share) for times in _PADS):
            if 1 + pad + stretch / 2 < self._free - _GAIN:
                took[pad] = tried(pad)
        self._pad = min(took, key=took.__getitem__, default=0.0)
        self.is_pacing = bool(took) and took[self._pad] <= self._free - _GAIN
        self._grids = {}
        for seen in self._slow.values():
            seen.clear()

    def _judge(self) -> None:
        """Let go if iterations are no faster than they would be without."""
        late = [np.mean(seen[len(seen) // 3 :]) for seen in self._slow.values()]
        if float(np.mean(late)) > self._free:
            self.is_pacing = False
        for seen in self._slow.values():
            seen.clear()


def chance(fit: Shifts) -> float:
    """Return the score of a group whose shifts are drawn at random, on the mean."""
    draw, found = np.random.default_rng(0), []
    for _ in range(_DRAWS):
        drawn = {j: int(draw.integers(fit.problem.room(j))) for j in fit.parts}
        found.append(score(fit.problem, drawn).score)
    return float(np.mean(found))
