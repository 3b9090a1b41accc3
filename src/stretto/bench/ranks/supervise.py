"""All runs of a task; ranks that a contender has ended are started again without it.

A peer that ends its process, or hangs where no deadline reaches, takes all ranks with
it. What was measured before is kept, the peer is named as missing from there on, and
the rest is measured. Where it was stretto, or one of several, its row says so.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from stretto.bench.ranks.journal import Journal, read_journal
from stretto.bench.ranks.launch import JOB, joined, run_ranks, runs_of
from stretto.bench.ranks.run import Say
from stretto.bench.workload.task import BenchTask
from stretto.errors import RankFailed

_MOST_STARTS = 5
_LEAST_S = 2.0
_SEARCH = "stretto.bench.tune.job:work"


def run_task(
    task: BenchTask, say: Say, *, how: str = "auto", job: str = JOB
) -> dict[str, Any]:
    """Return rank 0's document of all runs of a task, nothing on other ranks.

    A run that fails whole names its peers as missing, where another has worked.
    """
    found: dict[str, Any] = {}
    failed: list[tuple[BenchTask, RankFailed]] = []
    for part in runs_of(task):
        try:
            more = _supervised(part, say, how, job, is_extra=bool(found))
        except RankFailed as e:
            failed.append((part, e))
            continue
        found = joined(found, more) if found else more
    if failed and not found:
        raise failed[0][1]
    for part, error in failed:
        found["missing"] |= dict.fromkeys(part.peers, _first_line(error))
    return found


def _supervised(
    task: BenchTask, say: Say, how: str, job: str, *, is_extra: bool
) -> dict[str, Any]:
    """Return the document of one run, however often its ranks had to be started."""
    if how == "here":  # who started us would have to start us again
        return run_ranks(task, say, how=how, job=job)
    until = time.monotonic() + task.budget_s
    spoilt: dict[str, dict[str, str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "journal"
        part = replace(task, options={**task.options, "journal": str(path)})
        for start in range(1, _MOST_STARTS + 1):
            try:
                found = run_ranks(part, say, how=how, job=job)
                if start == 1:
                    return found
                break
            except RankFailed as e:
                kept, why = read_journal(path), _first_line(e)
                if kept.limits is not None and len(kept.rows) == len(task.cases()):
                    break  # all had been measured: it was the closing that failed
                if start == _MOST_STARTS or not kept.who:
                    raise
                say(f"{', '.join(kept.who)} ended the ranks, which start again: {why}")
                for name in kept.who:
                    if name in task.peers and len(kept.who) == 1:
                        Journal(str(path), 0).lost(name, f"ended the ranks: {why}")
                    else:
                        spoilt.setdefault(str(kept.case), {})[name] = why
                part = _rest(part, path, spoilt, until - time.monotonic())
                if is_extra and not part.peers:  # our own rows are known
                    break
        return read_journal(path).document()


def run_search(
    task: BenchTask,
    say: Say,
    blame: Callable[[str], bool],
    *,
    how: str = "auto",
    job: str = _SEARCH,
) -> dict[str, Any]:
    """Return what a search found, however often its ranks had to be started.

    It keeps what it knows itself; `blame` notes who has ended the ranks, if it knows.
    """
    until = time.monotonic() + task.budget_s
    for start in range(_MOST_STARTS + 1):
        left_s = max(2 * _LEAST_S, until - time.monotonic())
        options = {**task.options, "began": time.monotonic()}
        part = replace(task, budget_s=left_s, options=options)
        try:
            return run_ranks(part, say, how=how, job=job)
        except RankFailed as e:
            why = _first_line(e)
            if how == "here" or start == _MOST_STARTS or not blame(why):
                raise
            say(f"a candidate ended the ranks, and they start again: {why}")
    raise AssertionError("the last start returns or raises")


def _rest(
    task: BenchTask, path: Path, spoilt: dict[str, dict[str, str]], left_s: float
) -> BenchTask:
    """Return what is left to be measured, without who has ended the ranks."""
    kept = read_journal(path)
    options = {**task.options, "done": sorted(kept.rows), "spoilt": spoilt}
    peers = tuple(p for p in task.peers if p not in kept.missing)
    return replace(task, peers=peers, options=options, budget_s=max(_LEAST_S, left_s))


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]
