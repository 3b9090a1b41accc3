"""What the harness adds to a call: mpi4py by `stretto bench` and by a plain loop.

    mpirun -n 2 python benchmarks/harness_cost.py --out benchmarks/results

Both make the same calls on the same arrays in the same processes, batch by batch in
turn. The plain loop is what one would write by hand, between two readings of MPI's
clock; the other is what `stretto bench --peers mpi` runs. A batch takes as long as its
slowest rank.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

from stretto.bench import machine_of
from stretto.bench.contender import CallBuffer, Contender, Setup
from stretto.bench.machine import commit, versions
from stretto.bench.peers import get
from stretto.bench.timing import run_batch
from stretto.bench.workload.cases import case_of

WORLD = MPI.COMM_WORLD
RANK = WORLD.Get_rank()
ALLOWED_US, ALLOWED = 0.1, 0.05


def plain_all_reduce(x: Any, out: Any, turns: int) -> float:
    """Return microseconds a call."""
    began = MPI.Wtime()
    for _ in range(turns):
        WORLD.Allreduce(x, out, op=MPI.SUM)
    return (MPI.Wtime() - began) / turns * 1e6


def plain_barrier(x: Any, out: Any, turns: int) -> float:
    """Return microseconds a call."""
    began = MPI.Wtime()
    for _ in range(turns):
        WORLD.Barrier()
    return (MPI.Wtime() - began) / turns * 1e6


def plain_latency(x: Any, out: Any, turns: int) -> float:
    """Return microseconds a round trip."""
    began = MPI.Wtime()
    if RANK == 0:
        for _ in range(turns):
            WORLD.Send(x, 1)
            WORLD.Recv(out, 1)
    else:
        for _ in range(turns):
            WORLD.Recv(out, 0)
            WORLD.Send(x, 0)
    return (MPI.Wtime() - began) / turns * 1e6


PLAIN: dict[str, Callable[[Any, Any, int], float]] = {
    "all_reduce": plain_all_reduce,
    "barrier": plain_barrier,
    "latency": plain_latency,
}


def compared(test: str, nbytes: int, pairs: int, turns: int) -> dict[str, Any]:
    """Return the times of both, in turn, and whether they are the same."""
    case = case_of(test, nbytes, WORLD.Get_size())
    arrays = [np.zeros(max(1, nbytes // 4), np.float32) for _ in "io"]
    x, out = (CallBuffer(given=a, host=a) for a in arrays)
    setup = Setup(rank=RANK, num_ranks=WORLD.Get_size(), meet="")
    call = get("mpi", Contender).open(setup).prepare(case, x, out).call
    times: dict[str, list[float]] = {"plain": [], "harness": []}
    for at in range(pairs):
        for who in ("plain", "harness") if at % 2 else ("harness", "plain"):
            WORLD.Barrier()
            call()
            if who == "plain":
                us = PLAIN[test](*arrays, turns)
            else:
                us = run_batch(call, turns)
            times[who].append(WORLD.allreduce(us, op=MPI.MAX))
    found = {who: _figures(some) for who, some in times.items()}
    row: dict[str, Any] = {"test": test, "nbytes": nbytes, "turns": turns, **found}
    for figure in ("min_us", "p25_us", "p50_us"):
        adds = found["harness"][figure] - found["plain"][figure]
        row[f"adds_{figure}"] = round(adds, 4)
    allowed = max(ALLOWED_US, ALLOWED * found["plain"]["p25_us"])
    row["allowed_us"] = round(allowed, 4)
    row["holds"] = abs(row["adds_p25_us"]) <= allowed
    return row


def _figures(times: list[float]) -> dict[str, float]:
    quarters = statistics.quantiles(times, n=4)
    return {
        "min_us": round(min(times), 4),
        "p25_us": round(quarters[0], 4),
        "p50_us": round(quarters[1], 4),
    }


def main() -> int:
    """Measure, and write harness_cost.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default=".")
    parser.add_argument("--pairs", type=int, default=300)
    parser.add_argument("--turns", type=int, default=200)
    args = parser.parse_args()
    asked = [("latency", 8), ("latency", 4096), ("all_reduce", 8), ("all_reduce", 4096)]
    rows = [
        compared(test, nbytes, args.pairs, args.turns)
        for test, nbytes in [*asked, ("barrier", 0)]
    ]
    if RANK:
        return 0
    document = {
        "command": "mpirun -n 2 python benchmarks/harness_cost.py",
        "commit": commit(),
        "machine": machine_of(),
        "versions": versions(),
        "rows": rows,
    }
    path = Path(args.out) / "harness_cost_cpux2_202611.json"
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    for row in rows:
        told = ", ".join(f"{w} {row[w]['p25_us']:.3f}" for w in ("plain", "harness"))
        adds = f"adds {row['adds_p25_us']:+.3f} us of {row['allowed_us']:.3f} allowed"
        print(f"{row['test']:10} {row['nbytes']:6}  {told}  {adds}")
    return int(not all(row["holds"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
