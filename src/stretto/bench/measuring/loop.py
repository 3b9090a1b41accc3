"""Measure one case: prove every contender right, then time them in turn.

All contenders work on the same buffers, or each on its own. Batches of all are
interleaved, so that what disturbs the machine disturbs everybody. A contender that
cannot serve a case, or gives something else than the oracle, says so in its row. So
does one that raises or hangs on some rank: the ranks then agree that it is broken, and
nothing of it is called again: a rank whose contender raises keeps step with the others,
and at the next word between the ranks all learn of it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from stretto.bench.contender import CallBuffer, Contender, PreparedCall
from stretto.bench.measuring.control import Control
from stretto.bench.timing import Call, Span, Timer, span_of, turns_for
from stretto.errors import CommunicationError, StrettoError
from stretto.program.collectives import Array

_WARM_US = 2e3
_IN_GRAPH, _LARGE = 20, 16 << 20
_TRIES = 4
_COLD_CALLS = 8
"""Calls of a batch, each from cold caches."""
_LEAST_ROUNDS, _MOST_ROUNDS = 3, 1000
"""In a batch of calls that are timed one by one."""


class Measurable(Protocol):
    """A case, as the loop sees it."""

    @property
    def nbytes(self) -> int:
        """Return its size."""

    @property
    def scale(self) -> int:
        """Return how many messages a call sends, one after another."""

    @property
    def in_place(self) -> bool:
        """Return whether calls one after another change their input."""

    def fill(self, prepared: PreparedCall, rank: int, seed: int) -> None:
        """Put the input in, and into the output what no result is."""

    def wrong(self, prepared: PreparedCall, rank: int, seed: int) -> str:
        """Return what is wrong with a result; nothing when all is right."""


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
class Timings:
    """What was found of one contender; on every rank alike but for `us` elsewhere."""

    note: str = ""
    wrong: str = ""
    """Why it does not count; the times, if any, are those of a wrong result."""
    refused: bool = False
    broke_at: int | None = None
    """When it raised or hung, in words between the ranks: what it uses cannot be called
    again, and whatever else uses that breaks later. That is a fault of communication,
    an error that is not ours to explain, or one that only some ranks have met while the
    others wait for them."""
    us: Array = field(default_factory=lambda: np.zeros((0, 0)))
    """Microseconds a call, one row a rank and one column a batch."""
    whole_us: Array = field(default_factory=lambda: np.zeros(0))
    """The same from the first rank in to the last rank out; empty: no clock of all."""
    first_us: float | None = None
    """The very first call, from the first rank in to the last rank out."""
    turns: int = 0
    cpu_share: float = 0.0
    """Processor time over wall time, the mean of all ranks."""

    @property
    def batch_us(self) -> Array:
        """Return microseconds a call, of each batch.

        From the first rank in to the last rank out; where ranks have no clock in
        common, those of the slowest.
        """
        return self.whole_us if self.whole_us.size else self.us.max(axis=0)


def measure(
    control: Control,
    case: Measurable,
    contenders: Mapping[str, Contender],
    x: CallBuffer,
    out: CallBuffer,
    *,
    limits: Limits,
    seed: int,
) -> dict[str, Timings]:
    """Return what was found, by contender (collective)."""
    runners: dict[str, Runner] = {}
    for name, contender in contenders.items():
        limits.trying([name])
        runners[name] = one = Runner(control, limits)
        if one.prepare(case, contender, x, out):
            one.found.wrong = one.check(case, seed)
    results = {name: one.found for name, one in runners.items()}

    def left() -> dict[str, Runner]:
        return {n: one for n, one in runners.items() if not one.found.refused}

    for name, runner in left().items():
        limits.trying([name])
        runner.capture(case)
    if left():
        _time(control, left(), case, limits)
    for name, runner in left().items():
        limits.trying([name])
        # Calls one after another must give what one gives, the same for all: where a
        # call is in place some ranks have an input beside their output all the same.
        repeats = not case.in_place and runner.prepared.x is not runner.prepared.out
        if repeats:
            runner.prepared = replace(runner.prepared, call=runner.call)
        again = runner.check(case, seed + 1)
        runner.found.wrong = runner.found.wrong or again
    return results


def _time(
    control: Control, runners: Mapping[str, Runner], case: Measurable, limits: Limits
) -> None:
    """Run batches in turn until there are enough, or the time is over."""
    on_gpu = limits.timer is not None  # there a file may be written between batches
    round_us = 0.0
    for name, runner in runners.items():
        limits.trying([name] if on_gpu else list(runners))
        round_us += runner.calibrate()
    order = [(n, r) for n, r in runners.items() if not r.found.refused]
    rounds = int(limits.budget_us / max(round_us, 1.0))
    rounds = control.agree(max(limits.fewest, min(limits.batches, rounds)))
    for turn in range(rounds):
        for at in range(len(order)):
            name, runner = order[(at + turn) % len(order)]
            if on_gpu:
                limits.trying([name])
            control.barrier()
            runner.turn()
    for _, runner in order:
        runner.gather(case)


class Runner:
    """One contender in one case, on one rank: its batches, and what goes wrong."""

    prepared: PreparedCall

    def __init__(self, control: Control, limits: Limits) -> None:
        self.found = Timings()
        self.calls = 1
        """How many calls what is timed makes: a graph makes several."""
        self._control, self._limits = control, limits
        self._own_us: list[float] = []
        self._span: Span | None = None
        """The last batch's, by this machine's clock."""
        self._spans: list[Span] = []
        self._wall_s = self._cpu_s = 0.0
        self._trouble: tuple[int, str, bool] | None = None
        """An error, as the other ranks are told of it: after how many words between
        them, what it says, and whether it is a fault."""

    def _tried(self, call: Callable[[], Any]) -> Any:
        """Return what a call does; note an error, after which nothing is called."""
        if self._trouble is not None:
            return None
        try:
            return call()
        except Exception as e:
            lines = str(e).strip().splitlines()
            said = f"{type(e).__name__}: {lines[0] if lines else ''}"[:300]
            fault = isinstance(e, CommunicationError) or not isinstance(e, StrettoError)
            self._trouble = (self._control.words, said, fault)
            return None

    def _settled(self, value: Any = None, *, called: bool = True) -> list[Any]:
        """Tell one another; note in `found` whether all goes on. Return all values.

        Where nothing was `called`, nobody waits for anybody.
        """
        told = self._control.gather([self._trouble, value])
        met = sorted(t for t, _ in told if t is not None)
        if met:
            faults = [t for t in met if t[2]]
            self.found.refused, self.found.note = True, (faults or met)[0][1]
            if faults or (called and len(met) < len(told)):
                self.found.broke_at = met[0][0]
        return [v for _, v in told]

    def prepare(
        self, case: Measurable, contender: Contender, x: CallBuffer, out: CallBuffer
    ) -> bool:
        """Bind a contender on every rank, or note why one cannot."""
        prepared = self._tried(lambda: contender.prepare(case, x, out))
        self._settled(called=False)
        if self.found.refused:
            return False
        self.prepared, self.call = prepared, prepared.call
        self.found.note = self.prepared.note
        return True

    def check(self, case: Measurable, seed: int) -> str:
        """Make the call once on fresh data; return what is wrong with what it gives."""
        rank = self._control.rank

        def once() -> tuple[Span, str]:
            span = span_of(self.prepared.call, 1, settle=self.prepared.settle)
            return span, case.wrong(self.prepared, rank, seed)

        one_clock = self._control.has_one_clock
        self._tried(lambda: case.fill(self.prepared, rank, seed))
        self._control.barrier()
        told = self._settled(self._tried(once))
        if self.found.refused:
            return ""
        if self.found.first_us is None and one_clock:
            self.found.first_us = float(_whole([[span] for span, _ in told])[0])
        reasons = [f"rank {r}: {wrong}" for r, (_, wrong) in enumerate(told) if wrong]
        return reasons[0] if reasons else ""

    def capture(self, case: Measurable) -> None:
        """Put several calls into a graph, on every rank; or note why that cannot be."""
        make, prepared = self._limits.capture, self.prepared
        if make is None:
            return
        self.calls = _IN_GRAPH if case.nbytes <= _LARGE else 2
        if self._limits.cold:
            self.calls = 1
        self.call = self._tried(lambda: make(prepared.call, self.calls))
        self._settled(called=False)
        if prepared.captured is not None and not self.found.refused:
            self._tried(prepared.captured)
            self._settled(called=False)

    def calibrate(self) -> float:
        """Warm up, and decide how many calls make a batch; return its microseconds."""
        limits = self._limits
        self._control.barrier()
        if self.prepared.rounds is not None:
            fit = turns_for(self._slowest(1), limits.batch_us)
            self.found.turns = max(_LEAST_ROUNDS, min(_MOST_ROUNDS, fit))
            return limits.batch_us
        turns = 1
        while True:
            us = self._slowest(turns)
            if self.found.refused or us * turns >= _WARM_US or turns >= 512:
                break
            turns *= 8
        if limits.cold and not self.found.refused:
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
        told = self._settled(float(np.mean(self._batch(turns))))
        return float(max(told)) * self.calls

    def turn(self) -> None:
        """Run one batch, after a call that is not timed: all set out together."""
        if not self._limits.cold and self.prepared.rounds is None:
            self._tried(self.call)
        self._own_us += self._batch(self.found.turns)
        if self._span is not None:
            self._spans.append(self._span)

    def gather(self, case: Measurable) -> None:
        """Tell one another the times."""
        one_clock = self._control.has_one_clock
        share = self._cpu_s / self._wall_s if self._wall_s else 0.0
        own_us = [us / case.scale for us in self._own_us]
        told = self._settled([own_us, share, self._spans])
        if self.found.refused:
            return
        own, shares, spans = zip(*told, strict=True)
        self.found.us = np.array(own)
        self.found.cpu_share = float(np.mean(shares))
        if one_clock and spans[0]:
            each = self.found.turns * self.calls * case.scale
            self.found.whole_us = _whole(spans) / each

    def _batch(self, turns: int) -> list[float]:
        """Return the microseconds a call takes in a batch; infinity after an error."""
        if self._limits.cold and self._limits.timer is None:
            _flush()
            self._control.barrier()  # all set out together
        wall, cpu = time.perf_counter(), time.process_time()
        times: list[float] | None = self._tried(lambda: self._timed(turns))
        if times is None:
            return [math.inf]
        self._cpu_s += time.process_time() - cpu
        self._wall_s += time.perf_counter() - wall
        return [us / self.calls for us in times]

    def _timed(self, turns: int) -> list[float]:
        settle = self.prepared.settle
        if self.prepared.rounds is not None:
            return self.prepared.rounds(turns)
        if self._limits.timer is None:
            self._span = began_us, ended_us = span_of(self.call, turns, settle=settle)
            return [(ended_us - began_us) / turns]
        us = self._limits.timer(self.call, turns, self._limits.cold)
        if settle is not None:
            settle()
        return [us]


def _whole(spans: Sequence[Sequence[Span]]) -> Array:
    """Return how long each batch took, from the first rank in to the last rank out."""
    times = np.array(spans, float)
    found: Array = times[:, :, 1].max(axis=0) - times[:, :, 0].min(axis=0)
    return found


_COLD = np.zeros(0, np.uint8)


def _flush() -> None:
    """Push everything out of the caches."""
    global _COLD
    if not _COLD.size:
        _COLD = np.zeros(64 << 20, np.uint8)
    _COLD += 1
