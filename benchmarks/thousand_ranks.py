"""Trace, prove, lower, prove and simulate an all_reduce of 1,024 ranks, on one core.

    python benchmarks/thousand_ranks.py [--json FILE] [--only WORDS]

128 boxes of 8. A ring between boxes on each of 8 rails; then the same where boxes are
hosts, so that puts between them land (decision 14), and rails, which know hosts.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stretto import topology
from stretto.bench.machine import commit
from stretto.compiler.lower import lower
from stretto.compiler.plan import Schedule
from stretto.compiler.verify import verify, verify_plan
from stretto.executors import get
from stretto.program import algorithms

LIMIT_S = 60.0


HOSTS = tuple(rank // 8 for rank in range(1024))
CASES = {
    "hierarchical": ("all_reduce/hierarchical", ()),
    "hierarchical on hosts": ("all_reduce/hierarchical", HOSTS),
    "rails on hosts": ("all_reduce/rails", HOSTS),
}


def measure(name: str, hosts: tuple[int, ...]) -> dict[str, Any]:
    """Return the CPU seconds of every part."""
    seconds: dict[str, float] = {}

    def timed(name: str, work: Callable[[], Any]) -> Any:
        start = time.process_time()
        result = work()
        seconds[name] = round(time.process_time() - start, 2)
        print(f"{name:16} {seconds[name]:7.2f} s", flush=True)
        return result

    chosen = algorithms.get(name)
    params: dict[str, Any] = {"hosts": hosts} if chosen.knows_hosts else {"group": 8}
    machine = topology.load("dgx_h100x128")
    program = timed("trace", lambda: chosen.build(1024, **params))
    proved = timed("prove program", lambda: verify(program))
    how = Schedule(tile_bytes=1 << 20)
    plan = timed("lower", lambda: lower(proved, how, hosts=hosts))
    sure = timed("prove plan", lambda: verify_plan(plan, proved))
    result = timed(
        "simulate", lambda: get("sim").simulate(sure, machine, nbytes=1 << 26)
    )
    total = round(sum(seconds.values()), 2)
    print(f"{'in all':16} {total:7.2f} s of CPU time, want under {LIMIT_S:.0f}")
    return {
        "algorithm": name,
        "hosts": max(hosts, default=0) + 1,
        "operations": len(program.ops),
        "steps": sum(1 for _ in plan.steps()),
        "seconds": seconds,
        "total_s": total,
        "simulated_us": result.time_us,
        "ok": total < LIMIT_S,
    }


def main() -> int:
    """Measure each case, and say whether each stays under a minute."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", help="write the figures to this file")
    parser.add_argument("--only", default="", help="part of a case's name")
    args = parser.parse_args()
    rows = []
    for case, (name, hosts) in CASES.items():
        if args.only in case:
            print(f"# {case}")
            rows.append({"case": case, **measure(name, hosts)})
    if args.json:
        document = {
            "command": "python benchmarks/thousand_ranks.py",
            "commit": commit(),
            "machine": f"{platform.processor() or platform.machine()}, one core",
            "python": platform.python_version(),
            "rows": rows,
        }
        with Path(args.json).open("w") as file:
            json.dump(document, file, indent=2)
            file.write("\n")
    return 0 if all(row["ok"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
