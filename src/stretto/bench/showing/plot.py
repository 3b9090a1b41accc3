"""Draw a document: time by size, a panel a test; and what tuning found."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stretto.bench.peers import OURS
from stretto.errors import CallError, MissingExtraError

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


def plot_tuning(found: Mapping[str, Any], path: str) -> None:
    """Write what tuning found: times by size, and simulated against measured."""
    figure_class = open_figure(path)
    figure = figure_class(figsize=(12, 5), layout="constrained")
    left, right = figure.subplots(1, 2)
    _best(left, found["decided"])
    _foreseen(right, found["trials"])
    figure.savefig(path)


def _best(panel: Any, decided: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> None:
    """Draw tuned and untuned times; every change of the choice is labelled."""
    for at, (test, by_size) in enumerate(decided.items()):
        sizes = sorted(int(n) for n in by_size)
        if not sizes:
            continue
        rows = [by_size[str(n)] for n in sizes]
        color = f"C{at % 10}"
        panel.plot(sizes, [r["us"] for r in rows], "o-", color=color, label=test)
        panel.plot(sizes, [r["untuned_us"] for r in rows], ":", color=color)
        before = ""
        for nbytes, row in zip(sizes, rows, strict=True):
            if row["pin"] != before:
                before = row["pin"]
                label = before.partition("/")[2]
                panel.annotate(label, (nbytes, row["us"]), fontsize=5, rotation=35)
    panel.set(title="tuned (dotted: untuned)", xlabel="bytes", ylabel="us")
    panel.set_xscale("log", base=2)
    panel.set_yscale("log")
    panel.legend(fontsize="small")


def _foreseen(panel: Any, trials: Sequence[Mapping[str, Any]]) -> None:
    told = [t for t in trials if t["simulated_us"]]
    algorithms = list(dict.fromkeys(t["pin"].split()[0] for t in told))
    for at, name in enumerate(algorithms):
        mine = [t for t in told if t["pin"].split()[0] == name]
        x, y = ([t[k] for t in mine] for k in ("us", "simulated_us"))
        panel.plot(x, y, ".", color=f"C{at % 10}", label=name)
    if told:
        ends = [f(t["us"] for t in told) for f in (min, max)]
        panel.plot(ends, ends, "k-", linewidth=0.7)
        panel.legend(fontsize="xx-small")
    panel.set(title="simulated against measured", xlabel="measured us",
              ylabel="simulated us", xscale="log", yscale="log")  # fmt: skip
