"""What the first call of a kind takes: by the rank that proves it, and by the others.

    python benchmarks/first_call.py [--ranks 4,16,64,128] [--processes 64] [--json FILE]

Seconds of processor, which do not depend on what else runs. One process plays the first
rank, then another one (what it has proved is forgotten, what is on disk is not): both
choose, and read or prove their plan. With `--processes`, so many connect and sum once.
Run it with PYTHONPATH at another tree to compare.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import stretto
from stretto.bench.machine import commit
from stretto.runtime.choice import Question, Selector, plans

CASES = (
    ("all_reduce", 4096, False),
    ("all_reduce", 1 << 20, False),
    ("all_to_all", 4096, False),
    ("all_reduce", 4096, True),
    ("all_reduce", 4 << 20, True),
)
_LONG_S = 10.0


def choose(
    collective: str, n: int, nbytes: int, hosts: tuple[int, ...]
) -> tuple[str, float]:
    """Return what is chosen, and the seconds that choice, plan and own steps take."""
    plans._proved.cache_clear()
    plans.proved_program.cache_clear()
    start = time.process_time()
    asked = Question(
        executor="cpu", collective=collective, num_ranks=n, nbytes=nbytes, hosts=hosts
    )
    found = Selector("cpu").choose(asked)
    proved = plans.proved_plan(found.algorithm, n, (), found.schedule, True, hosts)
    assert proved.value.digest
    assert proved.value.ranks[n // 2]
    return str(found), time.process_time() - start


def alone(ranks: list[int]) -> list[dict[str, Any]]:
    """Measure the first rank and another one, of each kind of call."""
    rows = []
    choose("all_reduce", 2, 8, ())  # what is imported late
    for n in ranks:
        for collective, nbytes, several in CASES:
            if several and n < 16:
                continue
            hosts = tuple(rank // 8 for rank in range(n)) if several else ()
            chosen, first = choose(collective, n, nbytes, hosts)
            other = first
            for _ in range(1 if first > _LONG_S else 3):
                other = min(other, choose(collective, n, nbytes, hosts)[1])
            rows.append(
                {
                    "ranks": n,
                    "hosts": n // 8 if several else 1,
                    "collective": collective,
                    "nbytes": nbytes,
                    "chosen": chosen,
                    "first_s": round(first, 4),
                    "other_s": round(other, 4),
                    "all_others_s": round(other * (n - 1), 2),
                }
            )
            print(rows[-1], flush=True)
    return rows


def work(comm: Any, began: float) -> tuple[float, float, float, float]:
    """Return when this rank was connected and had summed, and what both took it."""
    connected, before = time.monotonic() - began, time.process_time()
    x = np.full(1024, comm.rank, np.float32)
    comm.all_reduce(x)
    assert x[0] == sum(range(comm.num_ranks))
    spent = time.process_time() - before
    return connected, time.monotonic() - began, before, spent


def together(n: int) -> dict[str, Any]:
    """Measure processes that connect and sum once."""
    used, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    out = stretto.spawn(work, began, num_ranks=n, deadline_s=600)
    now = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime
    connected, summed, before, in_call = map(list, zip(*out, strict=True))
    row = {
        "processes": n,
        "connected_after_s": round(max(connected), 2),
        "summed_after_s": round(max(summed), 2),
        "processor_s": round(spent, 1),
        "processor_to_connect_s": round(sum(before), 1),
        "processor_in_call_s": round(sum(in_call), 1),
        "load": round(os.getloadavg()[0], 1),
    }
    print(row, flush=True)
    return row


def main() -> int:
    """Measure, print, and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", default="4,16,64,128")
    parser.add_argument("--processes", default="")
    parser.add_argument("--json", help="write the figures to this file")
    args = parser.parse_args()
    rows: dict[str, Any] = {"command": " ".join(sys.argv), "commit": commit()}
    rows |= {"python": platform.python_version(), "cores": os.cpu_count()}
    with tempfile.TemporaryDirectory() as place:
        if args.ranks:
            os.environ["STRETTO_CACHE_DIR"] = place
            rows["alone"] = alone([int(n) for n in args.ranks.split(",")])
            del os.environ["STRETTO_CACHE_DIR"]
    if args.processes:
        rows["together"] = [together(int(n)) for n in args.processes.split(",")]
    if args.json:
        Path(args.json).write_text(json.dumps(rows, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
