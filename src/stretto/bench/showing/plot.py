"""Draw a document: time by size, one panel a test, one line a contender."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stretto.bench.rows import OURS
from stretto.errors import CallError, MissingExtraError

__all__ = ["open_figure", "plot"]

_COLUMNS = 4


def open_figure(path: str) -> Any:
    """Return matplotlib's Figure class, having looked at where it shall go."""
    if Path(path).suffix not in (".svg", ".png", ".pdf"):
        raise CallError(f"--plot {path}; want a name that ends in .svg or .png")
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as e:
        raise MissingExtraError("no matplotlib: pip install 'stretto[figures]'") from e
    return Figure


def plot(document: Mapping[str, Any], path: str) -> None:
    """Write the figure; its form is that of the file's name."""
    figure_class = open_figure(path)
    rows = [r for r in document["rows"] if r["ok"] and r["nbytes"]]
    tests = list(dict.fromkeys(str(r["test"]) for r in rows))
    if not tests:
        raise CallError(f"--plot {path}: nothing was measured that has a size")
    columns = min(_COLUMNS, len(tests))
    deep = math.ceil(len(tests) / columns)
    figure = figure_class(figsize=(4.2 * columns, 3.4 * deep), layout="constrained")
    panels = figure.subplots(deep, columns, squeeze=False).ravel()
    names = list(dict.fromkeys(str(r["contender"]) for r in rows))
    for panel, test in zip(panels, tests, strict=False):
        for at, name in enumerate(names):
            mine = [r for r in rows if r["test"] == test and r["contender"] == name]
            if mine:
                _line(panel, mine, name, at)
        panel.set(title=test, xscale="log", yscale="log", xlabel="bytes", ylabel="us")
        panel.set_xscale("log", base=2)
        panel.grid(visible=True, which="major", alpha=0.3)
    panels[0].legend(fontsize="small")
    for panel in panels[len(tests) :]:
        panel.set_visible(False)
    figure.savefig(path)


def _line(panel: Any, rows: list[Mapping[str, Any]], name: str, at: int) -> None:
    sizes = [r["nbytes"] for r in rows]
    color = f"C{at % 10}"
    style = {"linewidth": 2.2 if name == OURS else 1.2, "color": color}
    panel.plot(
        sizes, [r["p50_us"] for r in rows], marker="o", ms=3, label=name, **style
    )
    low, high = ([r[f"{k}_us"] for r in rows] for k in ("min", "p95"))
    panel.fill_between(sizes, low, high, color=color, alpha=0.15, linewidth=0)
