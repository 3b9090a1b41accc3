"""What recording costs: of calls, of steps inside them, and of reading ten million.

    python benchmarks/trace_cost.py [--out OUTPUT.json] [--quick]

Each cost is a difference: the same calls with and without, in turns, in one run. What
must be reached: 0.15 us for recording a call on the CPU; a tenth of an all_reduce of 64
KiB for recording its steps; 20 s and 2 GB, on one core, for a summary of 10 million
events. It exits with 1 when one is not.
"""

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import stretto
from stretto.bench.machine import commit
from stretto.executors.cpu.words import Common
from stretto.trace import CALL, CallKind, Comm, RankInfo, Recording, write

GOAL_CALL_US, GOAL_STEPS, GOAL_S, GOAL_GB = 0.15, 0.10, 20.0, 2.0
EVENTS, RANKS = 10_000_000, 8
TURNS = 41


def main() -> int:
    """Measure, print and judge."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--quick", action="store_true", help="fewer turns and events")
    args = parser.parse_args()
    turns = 9 if args.quick else TURNS
    found: dict[str, Any] = {"calls": calls_us(turns)}
    found["steps"] = spawned_steps(turns)
    found["summary"] = summary(EVENTS // 10 if args.quick else EVENTS)
    reached = {
        "calls": found["calls"]["cost_us"] <= GOAL_CALL_US,
        "steps": found["steps"]["share"] <= GOAL_STEPS,
        "summary": found["summary"]["seconds"] <= GOAL_S
        and found["summary"]["peak_gb"] <= GOAL_GB,
    }
    calls, steps, whole = found["calls"], found["steps"], found["summary"]
    print(
        f"recording a call: {calls['cost_us']:.3f} us of {calls['call_us']:.2f}; "
        f"goal {GOAL_CALL_US}: {yes(reached['calls'])}"
    )
    print(
        f"recording {steps['steps']} steps of an all_reduce of 64 KiB on 2 ranks: "
        f"{steps['share']:.1%} of {steps['call_us']:.1f} us; goal {GOAL_STEPS:.0%}: "
        f"{yes(reached['steps'])}"
    )
    print(
        f"summary of {whole['events']} events: {whole['seconds']:.1f} s "
        f"({whole['cpu_seconds']:.1f} s of the processor), "
        f"{whole['peak_gb']:.2f} GB; goal {GOAL_S:.0f} s, {GOAL_GB:.0f} GB: "
        f"{yes(reached['summary'])}"
    )
    if args.out:
        document = {
            "benchmark": "trace_cost",
            "command": sys.argv,
            "commit": commit(),
            "machine": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
            "load": os.getloadavg(),
            "found": found,
            "reached": reached,
        }
        args.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 0 if all(reached.values()) else 1


def yes(reached: bool) -> str:
    """Return a verdict."""
    return "reached" if reached else "NOT REACHED"


def switched(comm: Any) -> Any:
    """Return what switches the recording of calls on and off."""
    session = comm._sessions["cpu"]
    address = session._ring.address

    def switch(on: bool) -> None:
        session._words[Common.RING] = address if on else 0

    return switch


def calls_us(turns: int) -> dict[str, Any]:
    """Return what recording adds to a call that waits for nobody: a rank alone."""
    (found,) = stretto.spawn(_calls, turns, num_ranks=1)
    return dict(found)


def _calls(comm: Any, turns: int, calls: int = 20_000) -> dict[str, Any]:
    x = np.ones(16, np.float32)
    switch = switched(comm)
    each: dict[bool, list[float]] = {False: [], True: []}
    for turn in range(2 * turns):
        on = bool(turn % 2)
        switch(on)
        began = time.perf_counter()
        for _ in range(calls):
            comm.all_reduce(x)
        each[on].append((time.perf_counter() - began) / calls * 1e6)
    pairs = [b - a for a, b in zip(each[False], each[True], strict=True)]
    return {
        "call_us": min(each[False]),
        "cost_us": min(each[True]) - min(each[False]),
        "median_cost_us": statistics.median(pairs),
        "samples_us": {"off": each[False], "on": each[True]},
    }


def spawned_steps(turns: int) -> dict[str, Any]:
    """Return what recording steps adds to an all_reduce of two ranks."""
    found = stretto.spawn(_steps, turns, num_ranks=2)
    return dict(max(found, key=lambda one: one["share"]))


def _steps(comm: Any, turns: int, calls: int = 1000) -> dict[str, Any]:
    x = np.ones(1 << 14, np.float32)
    each: dict[bool, list[float]] = {False: [], True: []}
    ring = comm._sessions["cpu"]._ring
    for _ in range(calls):
        comm.all_reduce(x)
        x.fill(1.0)
    for turn in range(2 * turns):
        on = bool(turn % 2)
        ring.record_steps((1 << 17) * on)
        comm.barrier()
        times = []
        for _ in range(calls):
            began = time.perf_counter_ns()
            comm.all_reduce(x)
            times.append(time.perf_counter_ns() - began)
        each[on].append(statistics.median(times) / 1e3)
        x.fill(1.0)
    before = int(ring.words[5])
    ring.record_steps(1 << 17)
    comm.all_reduce(x)
    steps = int(ring.words[5]) - before
    ring.record_steps(0)
    off, on_us = statistics.median(each[False]), statistics.median(each[True])
    return {
        "call_us": off,
        "share": on_us / off - 1,
        "steps": steps,
        "samples_us": {"off": each[False], "on": each[True]},
    }


def summary(events: int) -> dict[str, Any]:
    """Return what a report of many calls takes, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "large.trace")
        write(path, large(events))
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        before = used.ru_utime + used.ru_stime
        began = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-c", _CHILD, str(path)],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=True,
        )
        seconds = time.perf_counter() - began
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return {
            "events": events,
            "seconds": seconds,
            "cpu_seconds": used.ru_utime + used.ru_stime - before,
            "peak_gb": int(done.stdout.split()[-1]) * 1024 / 1e9,
            "file_gb": path.stat().st_size / 1e9,
        }


_CHILD = """
import os, resource, sys
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
from stretto.cli import main
assert main(["trace", "report", sys.argv[1]]) == 0
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def large(events: int) -> Recording:
    """Return a recording of so many calls, of 8 ranks and some kinds."""
    rng = np.random.default_rng(0)
    each = events // RANKS
    kinds = tuple(
        CallKind(collective=name, nbytes=size, dtype="float32", text=f"{name} {size}")
        for name in ("all_reduce", "all_gather", "reduce_scatter")
        for size in (1 << 10, 1 << 16, 1 << 20, 1 << 24)
    )
    which = rng.integers(0, len(kinds), each)
    sizes = np.array([kind.nbytes for kind in kinds])
    begin = np.cumsum(rng.integers(20_000, 60_000, each)) + 10**9
    calls = np.zeros(each * RANKS, CALL)
    for rank in range(RANKS):
        mine = calls[rank * each : (rank + 1) * each]
        mine["rank"], mine["seq"], mine["state"] = rank, np.arange(1, each + 1), 1
        mine["kind"], mine["nbytes"] = which, sizes[which]
        start = begin + rng.integers(0, 5_000, each)
        mine["start"] = mine["enqueue"] = start
        mine["end"] = begin + 5_000 + sizes[which] // 1000 + rng.integers(0, 900, each)
    return Recording(
        calls=calls,
        ranks=tuple(RankInfo(rank=r, num_ranks=RANKS, host="a") for r in range(RANKS)),
        comms=(Comm(name="world", members=tuple(range(RANKS))),),
        kinds=kinds,
    )


if __name__ == "__main__":
    sys.exit(main())
