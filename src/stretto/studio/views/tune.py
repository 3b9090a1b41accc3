"""What `stretto tune` tried: how good it was, in order, and how well foreseen."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

from stretto.studio.analysis.scene import Args, Scene
from stretto.studio.inputs.loading import LoadedInputs
from stretto.studio.units import size_name

TITLE = "Tuning"
ORDER = 9
_MOST_TRIALS = 20_000
_MOST_TEXT = 120


def offered(loaded: LoadedInputs) -> bool:
    """Return whether there is a report."""
    return bool(loaded.reports)


def data(scene: Scene, args: Args) -> dict[str, Any]:
    """Return the searches: one for each collective, memory and size."""
    searches: dict[tuple[str, str, int, str], list[dict[str, Any]]] = defaultdict(list)
    passed_over = 0
    for name, reports in scene.loaded.reports.items():
        for report in reports:
            for trial in report["trials"]:
                told = _trial(trial)
                if told is None or sum(map(len, searches.values())) >= _MOST_TRIALS:
                    passed_over += 1
                    continue
                key = (name, str(trial["test"])[:_MOST_TEXT], int(trial["nbytes"]))
                memory = str(report.get("memory", ""))[:_MOST_TEXT]
                searches[*key, memory].append(told)
    return {
        "searches": [
            {
                "file": file,
                "test": test,
                "nbytes": nbytes,
                "size": size_name(nbytes),
                "memory": memory,
                "trials": trials,
            }
            for (file, test, nbytes, memory), trials in searches.items()
        ],
        "passed_over": passed_over,
    }


def _trial(trial: Any) -> dict[str, Any] | None:
    """Return a trial as the page is told it; None: it is none."""
    if not isinstance(trial, dict):
        return None
    pin, us = trial.get("pin"), _positive(trial.get("us"))
    nbytes = trial.get("nbytes")
    is_one = isinstance(pin, str) and "test" in trial and type(nbytes) is int
    if not is_one or us is None or not 0 <= int(nbytes or 0) < 1 << 62:
        return None
    return {
        "pin": str(pin)[:_MOST_TEXT],
        "us": us,
        "simulated_us": _positive(trial.get("simulated_us")),
    }


def _positive(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and 0 < value < math.inf else None
