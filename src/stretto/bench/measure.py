"""Measure one case: prove every contender right, then time them in turn.

All contenders work on the same buffers. Batches of all are interleaved, so that what
disturbs the machine disturbs everybody. A contender that cannot serve a case, or gives
something else than the oracle, says so in its row.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from stretto.bench.cases import Case, Check
from stretto.bench.contender import Buffer, Contender, Prepared
from stretto.bench.control import Control
from stretto.bench.timing import Call, pinned, run_batch, turns_for
from stretto.collectives import Array
from stretto.errors import CommunicationError

__all__ = ["Found", "Limits", "measure"]

_FEWEST = 5
_WARM_US = 2e3
_IN_GRAPH, _LARGE = 20, 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How long a case may be measured."""

    batch_us: float
    batches: int
    budget_us: float
    cold: bool = False
    capture: Callable[[Call, int], Call] | None = None
    """Time replays of graphs that this makes of several calls."""


@dataclass(slots=True, kw_only=True)
class Found:
    """What was found of one contender; on every rank alike but for `us` elsewhere."""

    note: str = ""
    wrong: str = ""
    """Why it does not count; the times, if any, are those of a wrong result."""
    refused: bool = False
    us: Array = field(default_factory=lambda: np.zeros((0, 0)))
    """Microseconds a call, one row a rank and one column a batch."""
    turns: int = 0
    cpu_share: float = 0.0
    """Processor time over wall time, the mean of all ranks."""


class _Runner:
    """One contender in one case."""

    def __init__(self, prepared: Prepared, found: Found) -> None:
        self.prepared, self.found = prepared, found
        self.call, self.calls = prepared.call, 1
        """What is timed, and how many calls it makes: a graph makes several."""
        self.own_us: list[float] = []
        self.wall_s = self.cpu_s = 0.0

    def batch(self, turns: int) -> float:
        """Run a batch."""
        wall, cpu = time.perf_counter(), time.process_time()
        us = run_batch(self.call, turns, settle=self.prepared.settle) / self.calls
        self.cpu_s += time.process_time() - cpu
        self.wall_s += time.perf_counter() - wall
        return us


def measure(
    control: Control,
    case: Case,
    contenders: Mapping[str, Contender],
    x: Buffer,
    out: Buffer,
    *,
    limits: Limits,
    seed: int,
) -> dict[str, Found]:
    """Return what was found, by contender (collective)."""
    results: dict[str, Found] = {}
    runners: dict[str, _Runner] = {}
    for name, contender in contenders.items():
        found = results[name] = Found()
        prepared = _prepare(control, case, contender, x, out, found)
        if prepared is not None:
            found.wrong, raised = _check(control, case, prepared, seed)
            if raised:
                found.refused, found.note, found.wrong = True, found.wrong, ""
            else:
                runners[name] = _Runner(prepared, found)
    if limits.capture is not None:
        for name, runner in list(runners.items()):
            if not _captured(control, case, runner, limits.capture):
                del runners[name]
    if runners:
        with pinned(control.rank, control.num_ranks):
            _time(control, case, runners, limits)
    for runner in runners.values():
        repeats = _repeats(runner.prepared)
        call = runner.call if repeats else runner.prepared.call
        again, _ = _check(control, case, runner.prepared, seed + 1, call)
        runner.found.wrong = runner.found.wrong or again
    return results


def _prepare(
    control: Control,
    case: Case,
    contender: Contender,
    x: Buffer,
    out: Buffer,
    found: Found,
) -> Prepared | None:
    """Bind a contender on every rank, or note why one cannot."""
    prepared, reason = None, ""
    try:
        prepared = contender.prepare(case, x, out)
    except CommunicationError:
        raise  # the ranks can no longer talk
    except Exception as e:
        reason = _told(e)
    reasons = [r for r in control.gather(reason) if r]
    if reasons:
        found.refused, found.note = True, reasons[0]
        return None
    assert prepared is not None, "no rank had a reason"
    found.note = prepared.note
    return prepared


def _check(
    control: Control,
    case: Case,
    prepared: Prepared,
    seed: int,
    call: Call | None = None,
) -> tuple[str, bool]:
    """Make the call once on fresh data; return what is wrong, and if it raised."""
    check = Check.fresh(case, control.rank, seed)
    if case.collective != "barrier":
        prepared.out.poison(check.want)
        if case.test == "bw" and control.rank == 0:  # it receives nothing
            prepared.out.write(check.want)
        if case.collective != "broadcast":
            prepared.x.write(check.x)
        elif control.rank == case.root:
            prepared.out.write(check.x)
    control.barrier()
    wrong, raised = "", False
    try:
        (call or prepared.call)()
        if prepared.settle is not None:
            prepared.settle()
    except CommunicationError:
        raise
    except Exception as e:
        wrong, raised = _told(e), True
    if not wrong and check.want.size:
        wrong = check.wrong(prepared.out.read(), case.dtype)
    told = control.gather([wrong, raised])
    reasons = [f"rank {r}: {w}" for r, (w, _) in enumerate(told) if w]
    return (reasons[0] if reasons else ""), any(r for _, r in told)


def _time(
    control: Control, case: Case, runners: Mapping[str, _Runner], limits: Limits
) -> None:
    """Run batches in turn until there are enough, or the time is over."""
    round_us = 0.0
    for runner in runners.values():
        us = _calibrate(control, runner)
        runner.found.turns = 1 if limits.cold else turns_for(us, limits.batch_us)
        round_us += us * (runner.found.turns + (not limits.cold))
    rounds = int(limits.budget_us / max(round_us, 1.0))
    rounds = control.agree(max(_FEWEST, min(limits.batches, rounds)))
    order = list(runners.values())
    for turn in range(rounds):
        for at in range(len(order)):
            runner = order[(at + turn) % len(order)]
            if limits.cold:
                _flush()
            control.barrier()
            if not limits.cold:
                runner.call()  # all set out together, from warm caches
            runner.own_us.append(runner.batch(runner.found.turns))
    for runner in order:
        share = runner.cpu_s / runner.wall_s if runner.wall_s else 0.0
        told = control.gather([[us / case.scale for us in runner.own_us], share])
        runner.found.us = np.array([times for times, _ in told])
        runner.found.cpu_share = float(np.mean([share for _, share in told]))


def _captured(
    control: Control,
    case: Case,
    runner: _Runner,
    capture: Callable[[Call, int], Call],
) -> bool:
    """Put several calls into a graph, on every rank; or note why that cannot be."""
    runner.calls = _IN_GRAPH if case.nbytes <= _LARGE else 2
    reason = ""
    try:
        runner.call = capture(runner.prepared.call, runner.calls)
    except CommunicationError:
        raise
    except Exception as e:
        reason = _told(e)
    reasons = [r for r in control.gather(reason) if r]
    if reasons:
        runner.found.refused, runner.found.note = True, reasons[0]
    return not reasons


def _calibrate(control: Control, runner: _Runner) -> float:
    """Return about what a call takes, warming up meanwhile; the same on every rank."""
    control.barrier()
    turns = 1
    while True:
        own = run_batch(runner.call, turns, settle=runner.prepared.settle)
        us = float(max(control.gather(own)))
        if us * turns >= _WARM_US or turns >= 512:
            return us
        turns *= 8


_COLD = np.zeros(0, np.uint8)


def _flush() -> None:
    """Push everything out of the caches."""
    global _COLD
    if not _COLD.size:
        _COLD = np.zeros(64 << 20, np.uint8)
    _COLD += 1


def _repeats(prepared: Prepared) -> bool:
    """Return whether calls one after another give what one gives."""
    return prepared.x is not prepared.out


def _told(error: Exception) -> str:
    first = str(error).strip().splitlines()
    said = first[0] if first else ""
    return f"{type(error).__name__}: {said}"[:300]
