"""Measure one case: prove every contender right, then time them in turn.

All contenders work on the same buffers. Batches of all are interleaved, so that what
disturbs the machine disturbs everybody. A contender that cannot serve a case, or gives
something else than the oracle, says so in its row. So does one that raises or hangs on
some rank: the ranks then agree that it is broken, and nothing of it is called again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from stretto.bench.measuring.control import Control
from stretto.bench.measuring.runner import Found, Limits, Runner, settled, trouble_of
from stretto.bench.workload.cases import Case, Check
from stretto.bench.workload.contender import Buffer, Contender, Prepared
from stretto.bench.workload.timing import pinned

__all__ = ["Found", "Limits", "measure"]


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
    runners: dict[str, Runner] = {}
    for name, contender in contenders.items():
        limits.trying([name])
        found = results[name] = Found()
        prepared = _prepare(control, case, contender, x, out, found)
        if prepared is None:
            continue
        found.wrong = _check(control, case, prepared, found, seed)
        if not found.refused:
            runners[name] = Runner(control, prepared, found, limits)
    for name, runner in list(runners.items()):
        limits.trying([name])
        runner.capture(case)
        if runner.found.refused:
            del runners[name]
    if runners:
        with pinned(control.rank, control.num_ranks):
            _time(control, runners, case, limits)
    for name, runner in runners.items():
        limits.trying([name])
        if not runner.found.refused:
            told = runner.prepared
            if _repeats(case, told):
                told = replace(told, call=runner.call)
            again = _check(control, case, told, runner.found, seed + 1)
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
    prepared, trouble = None, None
    try:
        prepared = contender.prepare(case, x, out)
    except Exception as e:
        trouble = trouble_of(e, control)
    settled(control, trouble, found, called=False)
    if found.refused:
        return None
    assert prepared is not None, "no rank had a reason"
    found.note = prepared.note
    return prepared


def _check(
    control: Control, case: Case, prepared: Prepared, found: Found, seed: int
) -> str:
    """Make the call once on fresh data; return what is wrong with what it gives."""
    check = Check.fresh(case, control.rank, seed)
    wrong, trouble = "", None
    try:
        if case.collective != "barrier":
            _fill(case, prepared, check, control.rank)
    except Exception as e:
        trouble = trouble_of(e, control)
    control.barrier()
    try:
        if trouble is None:
            prepared.call()
            if prepared.settle is not None:
                prepared.settle()
            if check.want.size and not prepared.out.equals(check.want):
                wrong = check.wrong(prepared.out.read(), case.dtype)
    except Exception as e:
        trouble = trouble_of(e, control)
    told = settled(control, trouble, found, wrong)
    reasons = [f"rank {r}: {w}" for r, w in enumerate(told) if w]
    return reasons[0] if reasons and not found.refused else ""


def _fill(case: Case, prepared: Prepared, check: Check, rank: int) -> None:
    """Put the input in, and into the output what no result is."""
    prepared.out.poison(check.want)
    if case.test == "bw" and rank == 0:  # it receives nothing
        prepared.out.write(check.want)
    if case.collective != "broadcast":
        prepared.x.write(check.x)
    elif rank == case.root:
        prepared.out.write(check.x)


def _time(
    control: Control, runners: Mapping[str, Runner], case: Case, limits: Limits
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


def _repeats(case: Case, prepared: Prepared) -> bool:
    """Return whether calls one after another give what one gives; the same for all.

    Where a call is in place some ranks have an input beside their output all the same.
    """
    return not case.in_place and prepared.x is not prepared.out
