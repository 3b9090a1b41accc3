"""Time what invariant bits cost: all_reduce beside the fastest choice, in turns.

    python benchmarks/bits_cost.py [--ranks 2] [--seconds 0.4] [--turns 7] [--out NAME]

Three contenders take turns, in an order that turns round: `bits="any"`, the same again
as a control, and `bits="invariant"`. All use one array (`--apart`: each its own). A
figure is the median over turns of the least and of the median time of a call on rank 0.
The control's ratio is what the measurement cannot tell apart. NAME.json and NAME.md get
all of it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np

import stretto
from stretto.bench.machine import commit

SIZES = (*tuple(1 << k for k in range(3, 27, 2)), 1 << 20)
WAYS = {"any": "any", "control": "any", "invariant": "invariant"}


def one_turn(comm: Any, x: Any, bits: str, calls: int) -> list[float]:
    """Return the microseconds of so many calls, each begun together."""
    found = []
    for _ in range(calls):
        comm.barrier()
        start = time.perf_counter_ns()
        comm.all_reduce(x, bits=bits)
        found.append((time.perf_counter_ns() - start) / 1e3)
    return found


def measure(comm: Any, seconds: float, turns: int, apart: bool) -> list[dict[str, Any]]:
    """Return a row for each size and each kind of memory."""
    return [
        _row(comm, memory, nbytes, seconds, turns, apart)
        for memory in ("staged", "registered")
        for nbytes in sorted(SIZES)
    ]


def _row(
    comm: Any, memory: str, nbytes: int, seconds: float, turns: int, apart: bool
) -> dict[str, Any]:
    count = nbytes // 4
    shared = memory == "registered"
    arrays: dict[str, Any] = {}
    for way in WAYS:
        if apart or not arrays:
            x = comm.empty(count) if shared else np.empty(count, np.float32)
        arrays[way] = x
    for x in arrays.values():
        x[:] = 0.0
    warm = [one_turn(comm, arrays[way], WAYS[way], 20)[-5:] for way in WAYS]
    each = np.array([statistics.median(warm[0])])
    comm.all_reduce(each, "max")  # as many calls on all ranks
    calls = int(min(2000, max(5, seconds * 1e6 / max(1.0, float(each[0])))))
    told: dict[str, list[list[float]]] = {way: [] for way in WAYS}
    for turn in range(turns):
        order = list(WAYS)[turn % 3 :] + list(WAYS)[: turn % 3]
        for way in order if turn % 2 else order[::-1]:
            told[way].append(one_turn(comm, arrays[way], WAYS[way], calls))
    row: dict[str, Any] = {"memory": memory, "bytes": nbytes, "calls": calls}
    for way in WAYS:
        row[way] = {
            "plan": comm.explain(
                "all_reduce", count, registered=shared, bits=WAYS[way]
            ),
            "least": statistics.median(min(t) for t in told[way]),
            "median": statistics.median(statistics.median(t) for t in told[way]),
        }
    return row


def page(found: dict[str, Any]) -> str:
    """Return the table."""
    lines = [
        f"# What invariant bits cost: all_reduce, {found['ranks']} ranks on CPUs",
        "",
        (
            f"`{found['command']}`, commit {found['commit']}, {found['cores']} cores, "
            f"Python {found['python']}. float32, microseconds a call on rank 0; "
            "invariant and control as ratios to any."
        ),
        "",
        (
            "| memory | bytes | any, least | invariant | control | any, median | "
            "invariant | control | same plan |"
        ),
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    for row in found["rows"]:
        a, b, c = row["any"], row["invariant"], row["control"]
        cells = [row["memory"], str(row["bytes"])]
        for kind in ("least", "median"):
            cells += [f"{a[kind]:.1f}"]
            cells += [f"{b[kind] / a[kind]:.3f}", f"{c[kind] / a[kind]:.3f}"]
        cells.append("yes" if a["plan"] == b["plan"] else f"no: {b['plan']}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=0.4)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--apart", action="store_true", help="an array each")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    rows = stretto.spawn(
        measure, args.seconds, args.turns, args.apart, num_ranks=args.ranks
    )[0]
    said = f"--ranks {args.ranks} --seconds {args.seconds} --turns {args.turns}"
    said += " --apart" if args.apart else ""
    found = {
        "command": f"python benchmarks/bits_cost.py {said}",
        "commit": commit(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "ranks": args.ranks,
        "rows": rows,
    }
    print(page(found))
    if args.out:
        args.out.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n")
        args.out.with_suffix(".md").write_text(page(found))


if __name__ == "__main__":
    main()
