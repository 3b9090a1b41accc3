"""Print a document as the OSU benchmarks or nccl-tests print theirs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from stretto.bench.peers import OURS
from stretto.program.collectives import storage

OSU_NAMES = {
    "latency": "Latency",
    "bw": "Bandwidth",
    "bibw": "Bi-Directional Bandwidth",
    "multi_lat": "Multi Latency",
    "all_gather": "Allgather Latency",
    "all_gather_v": "Allgatherv Latency",
    "all_reduce": "Allreduce Latency",
    "all_to_all": "All-to-All Personalized Exchange Latency",
    "all_to_all_v": "All-to-Allv Personalized Exchange Latency",
    "barrier": "Barrier Latency",
    "broadcast": "Broadcast Latency",
    "gather": "Gather Latency",
    "gather_v": "Gatherv Latency",
    "reduce": "Reduce Latency",
    "reduce_scatter": "Reduce_scatter Latency",
    "reduce_scatter_v": "Reduce_scatter Latency",
    "scatter": "Scatter Latency",
    "scatter_v": "Scatterv Latency",
}
_NCCL_HEAD = """\
#       size         count      type   redop  root        time    algbw    busbw  #wrong
#        (B)    (elements)                                (us)   (GB/s)   (GB/s)
""".splitlines()
_NCCL_TYPES = {"float32": "float", "float64": "double", "float16": "half"}


def osu_format(document: Mapping[str, Any]) -> str:
    """Return OSU's tables, one a test and contender; sizes are theirs.

    OSU counts a rank's own part where we count the full vector, so all_gather, gather,
    scatter and all_to_all have 1/n of our size.
    """
    lines: list[str] = []
    for rows in _tables(document):
        first = rows[0]
        test, name = str(first["test"]), str(first["contender"])
        title = OSU_NAMES.get(test, f"{test} Latency")
        in_bandwidth = test in ("bw", "bibw")
        unit = "Bandwidth (MB/s)" if in_bandwidth else "Latency (us)"
        lines += [f"# {name} {title} Test", f"# {'Size':<10}{unit:>22}"]
        for row in rows:
            value = row["p50_us"]
            if in_bandwidth and row["algbw_gbps"] is not None:
                value = row["algbw_gbps"] * 1e3
            if test == "barrier":
                lines.append(f"{_figure(value, row):>34}")
                continue
            lines.append(f"{_osu_size(row):<12}{_figure(value, row):>22}")
        lines.append("")
    return "\n".join(lines)


def nccl_format(document: Mapping[str, Any]) -> str:
    """Return nccl-tests' tables, one a test and contender; sizes are the same."""
    lines: list[str] = []
    for rows in _tables(document):
        first = rows[0]
        lines.append(f"# {first['contender']} {first['test']} nRanks {first['ranks']}")
        lines += _NCCL_HEAD
        for row in rows:
            item = storage(row["dtype"]).itemsize
            kind = _NCCL_TYPES.get(row["dtype"], row["dtype"])
            op = row["op"] if "reduce" in row["test"] else "none"
            root = 0 if row["test"] in ("broadcast", "reduce") else -1
            lines.append(
                f"{row['nbytes']:>12}{math.ceil(row['nbytes'] / item):>14}{kind:>10}"
                f"{op:>8}{root:>6}{_figure(row['p50_us'], row):>12}"
                f"{_rate(row['algbw_gbps'])}{_rate(row['busbw_gbps'])}"
                f"{'0' if row['ok'] else 'N/A' if row['refused'] else '>0':>8}"
            )
        buses = [row["busbw_gbps"] for row in rows if row["busbw_gbps"]]
        mean = sum(buses) / len(buses) if buses else 0.0
        wrong = sum(not row["ok"] and not row["refused"] for row in rows)
        lines += [
            f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}",
            f"# Avg bus bandwidth    : {mean:.4g}",
            "#",
            "",
        ]
    return "\n".join(lines)


def _rate(gbps: float | None) -> str:
    """Return a bandwidth; of what has none nccl-tests prints N/A, and never 0.00."""
    return f"{'N/A':>9}" if gbps is None else f"{gbps:>9.2f}"


def _tables(document: Mapping[str, Any]) -> list[Sequence[Mapping[str, Any]]]:
    """Return rows by test and contender, stretto's first."""
    found: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in document["rows"]:
        found.setdefault((row["test"], row["contender"]), []).append(row)
    order = {test: at for at, (test, _) in enumerate(found)}
    keys = sorted(found, key=lambda k: (order[k[0]], k[1] != OURS))
    return [found[key] for key in keys]


def _osu_size(row: Mapping[str, Any]) -> int:
    own = ("all_gather", "gather", "scatter", "all_to_all")
    divided = str(row["test"]).removesuffix("_v") in own
    return int(row["nbytes"]) // (int(row["ranks"]) if divided else 1)


def _figure(value: float | None, row: Mapping[str, Any]) -> str:
    if row["refused"] or value is None:
        return "N/A"
    return f"{value:.2f}" if row["ok"] else f"WRONG({value:.2f})"
