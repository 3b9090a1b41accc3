"""Start the ranks of a search, and start them again when a candidate has ended them."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from stretto.bench.ranks.launch import run_ranks
from stretto.bench.ranks.run import Say
from stretto.bench.tune.memory import blame
from stretto.bench.workload.task import Task
from stretto.errors import RankFailed

__all__ = ["supervised"]

_JOB = "stretto.bench.tune.job:work"
_MOST_STARTS = 6
_LEAST_S = 5.0


def supervised(
    task: Task, say: Say, *, how: str = "auto", job: str = _JOB
) -> dict[str, Any]:
    """Return what the search found, however often its ranks had to be started."""
    until = time.monotonic() + task.budget_s
    state = Path(str(task.options["state"]))
    for start in range(1, _MOST_STARTS + 1):
        left_s = max(_LEAST_S, until - time.monotonic())
        try:
            options = {**task.options, "began": time.monotonic()}
            fresh = replace(task, budget_s=left_s, options=options)
            return run_ranks(fresh, say, how=how, job=job)
        except RankFailed as e:
            why = str(e).strip().splitlines()[0]
            if how == "here" or start == _MOST_STARTS or not blame(state, why):
                raise
            say(f"a candidate ended the ranks, and they start again: {why}")
    raise AssertionError("the last start returns or raises")
