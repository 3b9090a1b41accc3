"""What `stretto search` tried: how the best cost fell, and from whom it came."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from stretto.studio.analysis.scene import Args, Scene
from stretto.studio.inputs.loading import LoadedInputs

if TYPE_CHECKING:
    from stretto.search.evolve import Judged

TITLE = "Search"
ORDER = 11
_MOST_TRIALS = 20_000
_MOST_TEXT = 400


def offered(loaded: LoadedInputs) -> bool:
    """Return whether there is a run."""
    return bool(loaded.searches)


def data(scene: Scene, args: Args) -> dict[str, Any]:
    """Return the runs: their candidates, each with its last verdict."""
    return {
        "runs": [
            {"file": name, **_run(said, rows)}
            for name, (said, rows) in scene.loaded.searches.items()
        ]
    }


def _run(said: Mapping[str, str], rows: Sequence[Judged]) -> dict[str, Any]:
    last: dict[int, Judged] = {}
    for one in rows:
        before = last.get(one.trial.number)
        if before is None or one.trial.rung >= before.trial.rung:
            last[one.trial.number] = one
    top = max((one.trial.rung for one in rows if one.verdict.passed), default=0)
    whole = [
        one for one in last.values() if one.verdict.passed and one.trial.rung == top
    ]
    best = min(whole, key=lambda o: (o.verdict.cost, o.trial.number), default=None)
    line = _ancestors(last, best.trial.number) if best else set()
    shown = sorted(last)[:_MOST_TRIALS]
    return {
        "problem": str(said.get("problem", ""))[:_MOST_TEXT],
        "seed": str(said.get("seed", ""))[:20],
        "evals": str(said.get("evals", ""))[:20],
        "passed_over": len(last) - len(shown),
        "trials": [
            _trial(last[n], is_whole=last[n].trial.rung == top, is_line=n in line)
            for n in shown
        ],
    }


def _ancestors(last: Mapping[int, Judged], number: int) -> set[int]:
    """Return a candidate, and all that it was made of."""
    found: set[int] = set()
    waiting = [number]
    while waiting:
        one = waiting.pop()
        if one not in found and one in last:
            found.add(one)
            waiting += last[one].trial.parents
    return found


def _trial(one: Judged, *, is_whole: bool, is_line: bool) -> dict[str, Any]:
    trial, verdict = one.trial, one.verdict
    fits = verdict.passed and math.isfinite(verdict.cost)
    return {
        "number": trial.number,
        "text": trial.text[:_MOST_TEXT],
        "way": trial.way[:40],
        "island": trial.island,
        "parents": list(trial.parents),
        "cost": verdict.cost if fits else None,
        "refused": verdict.refused[:_MOST_TEXT],
        "whole": fits and is_whole,
        "line": is_line,
    }
