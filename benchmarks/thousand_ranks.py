"""Trace, prove, lower, prove and simulate a hierarchical all_reduce of 1,024 ranks.

    python benchmarks/thousand_ranks.py [--json FILE]

128 boxes of 8, a ring between boxes on each of 8 rails. On one core.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stretto import algorithms, topology
from stretto.executors import get
from stretto.lower import lower
from stretto.plan import Schedule
from stretto.verify import verify, verify_plan

LIMIT_S = 60.0


def main() -> int:
    """Measure each part, and say whether the whole stays under a minute."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", help="write the figures to this file")
    args = parser.parse_args()
    seconds: dict[str, float] = {}

    def timed(name: str, work: Callable[[], Any]) -> Any:
        start = time.process_time()
        result = work()
        seconds[name] = round(time.process_time() - start, 2)
        print(f"{name:16} {seconds[name]:7.2f} s", flush=True)
        return result

    chosen = algorithms.get("all_reduce/hierarchical")
    machine = topology.load("dgx_h100x128")
    program = timed("trace", lambda: chosen.build(1024, group=8))
    proved = timed("prove program", lambda: verify(program))
    plan = timed("lower", lambda: lower(proved, Schedule(tile_bytes=1 << 20)))
    sure = timed("prove plan", lambda: verify_plan(plan, proved))
    result = timed(
        "simulate", lambda: get("sim").simulate(sure, machine, nbytes=1 << 26)
    )
    total = round(sum(seconds.values()), 2)
    print(f"{'in all':16} {total:7.2f} s of CPU time, want under {LIMIT_S:.0f}")
    row = {
        "operations": len(program.ops),
        "steps": sum(1 for _ in plan.steps()),
        "seconds": seconds,
        "total_s": total,
        "simulated_us": result.time_us,
        "ok": total < LIMIT_S,
    }
    if args.json:
        commit = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True
        ).stdout.strip()
        document = {
            "command": "python benchmarks/thousand_ranks.py",
            "commit": commit,
            "machine": f"{platform.processor() or platform.machine()}, one core",
            "python": platform.python_version(),
            "rows": [row],
        }
        with Path(args.json).open("w") as file:
            json.dump(document, file, indent=2)
            file.write("\n")
    return 0 if row["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
