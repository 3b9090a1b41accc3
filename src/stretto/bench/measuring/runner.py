"""One contender in one case, on one rank: its batches, and what goes wrong with them.

A rank whose contender raises keeps step with the others and calls it no more; at the
next word between the ranks all learn of it. `broken` is what cannot be called again: a
fault of communication, an error that is not ours to explain, or one that only some
ranks have met while the others wait for them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stretto.bench.measuring.control import Control
from stretto.bench.workload.cases import Case
from stretto.bench.workload.contender import Prepared
from stretto.bench.workload.timing import Call, Timer, run_batch, turns_for
from stretto.collectives import Array
from stretto.errors import CommunicationError, StrettoError

__all__ = ["Found", "Limits", "Runner", "Trouble", "settled", "trouble_of"]

_WARM_US = 2e3
_IN_GRAPH, _LARGE = 20, 16 << 20
_TRIES = 4
_COLD_CALLS = 8
"""Calls of a batch, each from cold caches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How long a case may be measured, and by what."""

    batch_us: float
    batches: int
    budget_us: float
    fewest: int = 5
    """Batches that are run whatever the budget says."""
    cold: bool = False
    timer: Timer | None = None
    """Reads another clock than the processor's: events of a GPU."""
    capture: Callable[[Call, int], Call] | None = None
    """Time replays of graphs that this makes of several calls."""
    trying: Callable[[Sequence[str]], None] = lambda _: None
    """Is told who is about to be called: should all end here, one of those did it."""


@dataclass(slots=True, kw_only=True)
class Found:
    """What was found of one contender; on every rank alike but for `us` elsewhere."""

    note: str = ""
    wrong: str = ""
    """Why it does not count; the times, if any, are those of a wrong result."""
    refused: bool = False
    broke_at: int | None = None
    """When it raised or hung, in words between the ranks: what it uses is then broken,
    and whatever else uses that breaks later."""
    us: Array = field(default_factory=lambda: np.zeros((0, 0)))
    """Microseconds a call, one row a rank and one column a batch."""
    turns: int = 0
    cpu_share: float = 0.0
    """Processor time over wall time, the mean of all ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """An error, as the other ranks are told of it."""

    said: str
    is_fault: bool
    at: int
    """The words that the ranks had exchanged before."""


def trouble_of(error: Exception, control: Control) -> Trouble:
    """Return what to tell of an error."""
    lines = str(error).strip().splitlines()
    return Trouble(
        said=f"{type(error).__name__}: {lines[0] if lines else ''}"[:300],
        is_fault=isinstance(error, CommunicationError)
        or not isinstance(error, StrettoError),
        at=control.words,
    )


def settled(
    control: Control,
    trouble: Trouble | None,
    found: Found,
    value: Any = None,
    *,
    called: bool = True,
) -> list[Any]:
    """Tell one another; note in `found` whether all goes on. Return all values.

    Where nothing was `called`, nobody waits for anybody.
    """
    mine = trouble and [trouble.at, trouble.said, trouble.is_fault]
    told = control.gather([mine, value])
    met = sorted(t for t, _ in told if t is not None)
    if met:
        faults = [t for t in met if t[2]]
        found.refused, found.note = True, (faults or met)[0][1]
        if faults or (called and len(met) < len(told)):
            found.broke_at = met[0][0]
    return [v for _, v in told]


class Runner:
    """A prepared contender, and the times of its batches."""

    def __init__(
        self, control: Control, prepared: Prepared, found: Found, limits: Limits
    ) -> None:
        self.prepared, self.found = prepared, found
        self.call, self.calls = prepared.call, 1
        """What is timed, and how many calls it makes: a graph makes several."""
        self._control, self._limits = control, limits
        self._own_us: list[float] = []
        self._wall_s = self._cpu_s = 0.0
        self._trouble: Trouble | None = None

    def capture(self, case: Case) -> None:
        """Put several calls into a graph, on every rank; or note why that cannot be."""
        make = self._limits.capture
        if make is None:
            return
        self.calls = _IN_GRAPH if case.nbytes <= _LARGE else 2
        if self._limits.cold:
            self.calls = 1
        try:
            self.call = make(self.prepared.call, self.calls)
        except Exception as e:
            self._trouble = trouble_of(e, self._control)
        settled(self._control, self._trouble, self.found, called=False)
        if self.prepared.captured is None or self.found.refused:
            return
        try:
            self.prepared.captured()
        except Exception as e:
            self._trouble = trouble_of(e, self._control)
        settled(self._control, self._trouble, self.found, called=False)

    def calibrate(self) -> float:
        """Warm up, and decide how many calls make a batch; return its microseconds."""
        limits = self._limits
        self._control.barrier()
        turns = 1
        while True:
            us = self._slowest(turns)
            if self.found.refused or us * turns >= _WARM_US or turns >= 512:
                break
            turns *= 8
        if limits.cold:
            self.found.turns = _COLD_CALLS if limits.timer else 1
            return us * self.found.turns
        for _ in range(_TRIES):
            if self.found.refused:
                return 0.0
            self.found.turns = turns_for(us, limits.batch_us)
            now = self._slowest(self.found.turns)
            if now >= us / 2:
                break
            us = now  # something had disturbed us: batches would be too short
        return us * (self.found.turns + 1)

    def _slowest(self, turns: int) -> float:
        """Return the slowest rank's microseconds a call, in a batch of so many."""
        told = settled(self._control, self._trouble, self.found, self._batch(turns))
        return float(max(told)) * self.calls

    def turn(self) -> None:
        """Run one batch, after a call that is not timed: all set out together."""
        if not self._limits.cold and self._trouble is None:
            try:
                self.call()
            except Exception as e:
                self._trouble = trouble_of(e, self._control)
        self._own_us.append(self._batch(self.found.turns))

    def gather(self, case: Case) -> None:
        """Tell one another the times."""
        share = self._cpu_s / self._wall_s if self._wall_s else 0.0
        mine = [[us / case.scale for us in self._own_us], share]
        told = settled(self._control, self._trouble, self.found, mine)
        if not self.found.refused:
            self.found.us = np.array([times for times, _ in told])
            self.found.cpu_share = float(np.mean([share for _, share in told]))

    def _batch(self, turns: int) -> float:
        """Return the microseconds a call takes in a batch; infinity after an error."""
        if self._trouble is not None:
            return math.inf
        if self._limits.cold and self._limits.timer is None:
            _flush()
        wall, cpu = time.perf_counter(), time.process_time()
        try:
            us = self._timed(turns)
        except Exception as e:
            self._trouble = trouble_of(e, self._control)
            return math.inf
        self._cpu_s += time.process_time() - cpu
        self._wall_s += time.perf_counter() - wall
        return us / self.calls

    def _timed(self, turns: int) -> float:
        settle = self.prepared.settle
        if self._limits.timer is None:
            return run_batch(self.call, turns, settle=settle)
        us = self._limits.timer(self.call, turns, self._limits.cold)
        if settle is not None:
            settle()
        return us


_COLD = np.zeros(0, np.uint8)


def _flush() -> None:
    """Push everything out of the caches."""
    global _COLD
    if not _COLD.size:
        _COLD = np.zeros(64 << 20, np.uint8)
    _COLD += 1
