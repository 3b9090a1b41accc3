"""Draw four collectives: how many times the best peer's speed, by size.

    python benchmarks/gpu_figure.py collectives.json [older.json ...] --out FILE.svg

Tables of `gpu_collectives.py`: a row counts in the first one that has a figure of ours
for it, and against peers of that same run. Filled points are of the first table.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

K = 1 << 10
_UNITS = ((1 << 30, "G"), (1 << 20, "M"), (K, "K"))


def points(
    tables: list[dict[str, Any]], collective: str
) -> list[tuple[int, float, float, int]]:
    """Return size, microseconds of ours and of the best peer, and which table's."""
    found: dict[int, tuple[int, float, float, int]] = {}
    for at, table in enumerate(tables):
        for row in table["rows"]:
            if row["collective"] != collective or row.get("ours_us") is None:
                continue
            best = min(row["peers_us"].values())
            own = (int(row["nbytes"]), float(row["ours_us"]), float(best), at)
            found.setdefault(row["nbytes"], own)
    return sorted(found.values())


def draw(axis: Axes, tables: list[dict[str, Any]], collective: str) -> None:
    """Draw the times of one collective."""
    found = points(tables, collective)
    sizes = [p[0] for p in found]
    first = [p[3] == 0 for p in found]
    for at, (label, colour) in enumerate(
        (("stretto", "tab:red"), ("the best peer", "tab:gray")), start=1
    ):
        us = [p[at] for p in found]
        axis.plot(sizes, us, color=colour, label=label)
        for is_first in (True, False):
            some = [i for i, one in enumerate(first) if one == is_first]
            axis.plot(
                [sizes[i] for i in some],
                [us[i] for i in some],
                color=colour,
                marker="o",
                markersize=4,
                linestyle="",
                fillstyle="full" if is_first else "none",
            )
    for nbytes, ours, best, _ in found:
        axis.annotate(
            f"{best / ours:.2f}",
            (nbytes, ours),
            xytext=(0, -11),
            textcoords="offset points",
            ha="center",
            fontsize=7,
        )
    axis.set(xscale="log", yscale="log", title=collective, xlabel="bytes", ylabel="us")
    axis.set_xticks(sizes[::2], [_size(n) for n in sizes[::2]])
    axis.margins(y=0.12)
    axis.minorticks_off()
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8)


def _size(nbytes: int) -> str:
    return next(f"{nbytes // unit}{name}" for unit, name in _UNITS if nbytes >= unit)


def main() -> None:
    """Read the tables, write the figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", nargs="+", type=Path, help="the newest first")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    tables = [json.loads(path.read_text()) for path in args.tables]
    names = dict.fromkeys(r["collective"] for table in tables for r in table["rows"])
    mpl.rcParams["svg.hashsalt"] = "stretto"
    figure, axes = plt.subplots(2, 2, figsize=(11, 8))
    for axis, collective in zip(axes.flat, names, strict=False):
        draw(axis, tables, collective)
    commits = ["points: " + tables[0]["commit"]]
    commits += ["hollow: " + table["commit"] for table in tables[1:]]
    about = f"{tables[0]['machine']['gpu']}, bf16, CUDA graphs; {', '.join(commits)}"
    figure.suptitle(f"{about}; figures: best peer / stretto", fontsize=10)
    figure.tight_layout()
    figure.savefig(args.out, metadata={"Date": None})


if __name__ == "__main__":
    main()
