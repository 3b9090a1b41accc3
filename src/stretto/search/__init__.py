"""Programs, configurations and policies, found by search and judged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stretto.search.calls import CallGrammar, read_calls
from stretto.search.evolve import (
    PolicyProblem,
    Problem,
    Searched,
    SearchRun,
    Settings,
    Verdict,
)
from stretto.search.evolve.running import search as _search
from stretto.search.found import FoundPolicy, load
from stretto.search.online import OnlineTuner
from stretto.search.problems import kind_of, problem, problems

__all__ = [
    "CallGrammar",
    "FoundPolicy",
    "OnlineTuner",
    "PolicyProblem",
    "Problem",
    "SearchRun",
    "Searched",
    "Settings",
    "Verdict",
    "evolve",
    "kind_of",
    "load",
    "problem",
    "problems",
    "read_calls",
    "replay",
]


def evolve(
    what: Problem[Any],
    *,
    evals: int = 1000,
    seed: int = 0,
    path: str | Path = ":memory:",
    **settings: Any,
) -> Searched:
    """Search a problem; with a path, in a file that is resumed if it is there.

    The same problem, seed and number of evaluations find the same. `settings` are
    those of `Settings`, such as `islands`.
    """
    return _search(
        what, Settings(evals=evals, seed=seed, **settings), run=SearchRun(path)
    )


def replay(what: Problem[Any], run: SearchRun) -> int:
    """Search once more what is in a run, judging anew; return how many verdicts differ.

    Where judges measure, they always do: then only what is asked is compared.
    """
    again = _search(what, run.settings)
    pairs = zip(run.rows(), again.run.rows(), strict=False)
    return sum(repr(old.verdict) != repr(new.verdict) for old, new in pairs)  # nan, too
