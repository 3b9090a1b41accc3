"""What ranks on two hosts have found, as a document and as a page; see hosts.py."""

from __future__ import annotations

import math
import statistics
from typing import Any, NamedTuple

SIZES = {
    8: (12, 50), 1 << 10: (12, 50), 1 << 12: (12, 50), 1 << 16: (12, 20),
    1 << 20: (8, 6), 1 << 24: (6, 1), 1 << 26: (4, 1),
}  # fmt: skip
"""By the size of a full vector: batches of a round, and calls of a batch."""
VERBS = (
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "barrier"
)  # fmt: skip


def joined(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Return microseconds a call of each batch, from first rank in to last rank out."""
    found: dict[str, Any] = {}
    for key, said in parts[0].items():
        if "spans" not in said:
            found[key] = said
            continue
        every = [part[key] for part in parts]
        batches, calls = (0, 1) if key == "connect" else SIZES[int(key.split()[1])]
        starts, ends, cpu = (
            [[one["spans"][i][n] for one in every] for i in range(batches)]
            for n in range(3)
        )
        first, last = zip(*(one["first"] for one in every), strict=True)
        found[key] = {
            "us": [
                round((max(e) - min(s)) / calls * 1e6, 2)
                for s, e in zip(starts, ends, strict=True)
            ],
            "cpu_us": [round(sum(c) / len(parts) / calls * 1e6, 2) for c in cpu],
            "first_us": round(1e6 * (max(last) - min(first))),
            "right": all(one["right"] for one in every),
        }  # fmt: skip
    return found


class Cell(NamedTuple):
    """What is said of one contender in one case."""

    median: float
    least: float
    first: float
    cpu: float
    right: bool


def cells(runs: dict[str, list[dict[str, Any]]], key: str) -> dict[str, Cell]:
    """Return what all rounds found of a case, by contender."""
    found = {}
    for name, rounds in runs.items():
        rows = [one[key] for one in rounds if key in one]
        us = [each for row in rows for each in row["us"]]
        firsts = [row["first_us"] for row in rows]
        if rows:
            cpu = [each for row in rows for each in row["cpu_us"]]
            found[name] = Cell(
                statistics.median(us or firsts), min(us or firsts),
                statistics.median(firsts), statistics.median(cpu or [0.0]),
                all(row["right"] for row in rows),
            )  # fmt: skip
    return found


def table(runs: dict[str, list[dict[str, Any]]]) -> str:
    """Return medians (least; first call), CPU, and how many times ours, as a page."""
    peers = [name for name in runs if name != "stretto"]
    lines = [
        "| call | " + " | ".join([*runs, *(f"{p} / stretto" for p in peers)]) + " |",
        "|---|" + "---|" * (len(runs) + len(peers)),
    ]
    ratios: dict[tuple[str, str], list[float]] = {}
    keys = [f"{verb} {nbytes}" for verb in VERBS for nbytes in SIZES]
    for key in [*keys, "connect"]:
        found = cells(runs, key)
        if not found:
            continue
        row = []
        for name in runs:
            one = found.get(name)
            wrong = "" if one is None or one.right else " WRONG"
            row.append(
                "-" if one is None else f"{one.median:.4g} ({one.least:.4g}; "
                f"{one.first:.0f}), CPU {one.cpu:.4g}{wrong}"
            )  # fmt: skip
        for peer in peers:
            both = found.get(peer), found.get("stretto")
            if both[0] is None or both[1] is None:
                row.append("-")
                continue
            ratio = both[0].median / both[1].median
            ratios.setdefault((key.split()[0], peer), []).append(ratio)
            row.append(f"{ratio:.2f}")
        lines.append(f"| {key} | " + " | ".join(row) + " |")
    lines += ["", "Geometric means over the sizes, and the least:", ""]
    for (verb, peer), some in ratios.items():
        mean = math.exp(statistics.fmean(map(math.log, some)))
        lines.append(
            f"- {verb}: {peer} takes {mean:.2f} times as long ({min(some):.2f})"
        )
    return "\n".join(lines)
