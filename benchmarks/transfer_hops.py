"""Put bytes by every carrier that engines go by, and by NIXL itself, over loopback.

    python benchmarks/transfer_hops.py [--out FILE] [--turns N]

Two processes each, which take turns in one run; what has arrived is compared. Ours are
prepared puts and plain ones: by a carrier of Python's both take the same way.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from pathlib import Path
from statistics import median
from typing import Any

from stretto.bench.machine import commit
from stretto.bench.transfers.contest import Couple
from stretto.bench.workload.moves import MoveCase
from stretto.errors import StrettoError

SIZES = (8, 64 << 10, 16 << 20)
ENTRANTS = {
    "stretto, hop tcp": ("stretto", "tcp"),
    "stretto, hop ucx": ("stretto", "ucx-tcp"),
    "stretto, hop nixl": ("stretto", "nixl-tcp"),
    "NIXL itself": ("nixl", "tcp"),
}
LONG = 1 << 20


def rounds_of(nbytes: int) -> int:
    """Return how many rounds make a turn."""
    return 100 if nbytes < LONG else 8


def measure(turns: int) -> list[dict[str, Any]]:
    """Return a row for each size and who puts it."""
    running: dict[str, Couple] = {}
    rows = []
    try:
        for name, (who, path) in ENTRANTS.items():
            try:
                running[name] = Couple(who, path, max(SIZES))
                running[name].meet()
            except StrettoError as e:
                print(f"{name} is not there: {e}", flush=True)
                if (one := running.pop(name, None)) is not None:
                    one.close()
        for nbytes in SIZES:
            case = MoveCase(what="put", path="tcp", nbytes=nbytes)
            times: dict[str, list[float]] = {name: [] for name in running}
            for one in running.values():
                one.fill(case)
            for _ in range(turns):
                for name, one in running.items():
                    times[name] += one.turn(case, rounds_of(nbytes))
            for name, one in running.items():
                row = {
                    "who": name, "bytes": nbytes, "rounds": len(times[name]),
                    "best_us": round(min(times[name]), 1),
                    "median_us": round(median(times[name]), 1),
                    "is_right": not one.wrong(case),
                }  # fmt: skip
                rows.append(row)
                print(row, flush=True)
    finally:
        for one in running.values():
            one.close()
    return rows


def main() -> None:
    """Measure, and write it down."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--turns", type=int, default=5)
    given = parser.parse_args()
    rows = measure(given.turns)
    if given.out is not None:
        document = {
            "command": " ".join(["python", *sys.argv]), "commit": commit(),
            "machine": platform.processor() or platform.machine(),
            "cores": os.cpu_count(), "kernel": platform.release(), "rows": rows,
        }  # fmt: skip
        given.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    if not all(row["is_right"] for row in rows):
        sys.exit("what has arrived is not what was sent")


if __name__ == "__main__":
    main()
