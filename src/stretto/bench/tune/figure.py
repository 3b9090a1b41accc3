"""Draw what tuning found: the best schedule by size, and how well it was foreseen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stretto.bench.showing.plot import open_figure

__all__ = ["draw"]


def draw(found: Mapping[str, Any], path: str) -> None:
    """Write the figure: times by size, and simulated against measured."""
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
