"""Recording on GPUs: steps that kernels write, clocks, graphs, and what it costs.

    python tests/device/trace.py --ranks 2 [--out DIR]

Every check prints a line, and the program ends with 1 when one fails. It wants torch
and a GPU for each rank. `--out` keeps a recording and a Perfetto trace of it.
"""

# ruff: noqa: T201  (a program: it prints its report)

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT / "src")]
os.environ["PYTHONPATH"] = f"{ROOT / 'src'}:{HERE}:{os.environ.get('PYTHONPATH', '')}"

import numpy as np  # noqa: E402

import stretto  # noqa: E402
from stretto.trace import STEP_KINDS, Recording, merge, write  # noqa: E402
from stretto.watch import (  # noqa: E402
    diagnose,
    head,
    rows_of,
    summarise,
    write_perfetto,
)

SIZES = (1 << 10, 64 << 10, 8 << 20)
CALLS, REPLAYS = 20, 200
MOST_ERROR_US = 20.0


def device(comm: Any) -> Any:
    """Return torch, on this rank's GPU."""
    import torch

    shared = os.environ.get("STRETTO_CUDA_SHARE_GPU") == "1"
    torch.cuda.set_device(0 if shared else comm.rank)
    torch.zeros(1, device="cuda")
    return torch


def recorded(comm: Any) -> dict[str, Any]:
    """Record calls with their steps: eager ones, and those of a graph."""
    torch = device(comm)
    n, rank = comm.num_ranks, comm.rank
    wrong: list[str] = []
    arrays = [torch.zeros(size // 4, device="cuda") for size in SIZES]
    with comm.trace(steps=True) as seen:
        for _ in range(CALLS):
            for x in arrays:
                x.fill_(rank + 1)
                comm.all_reduce(x)
                if not bool((x == n * (n + 1) / 2).all()):
                    wrong.append(f"all_reduce of {x.numel()}: {x[:2].tolist()}")
        torch.cuda.synchronize()
        comm.check()
        time.sleep(0.1)
        comm.barrier()
    with comm.trace(steps=True) as replayed:
        x = arrays[1]
        comm.all_reduce(x)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            comm.all_reduce(x)
        for _ in range(REPLAYS):
            graph.replay()
            torch.cuda.synchronize()
            time.sleep(0.0005)
        comm.check()
        time.sleep(0.1)
        comm.barrier()
    session = comm._sessions["cuda"]
    memory = session.recorded._memory
    return {
        "wrong": wrong,
        "eager": seen.recording,
        "graph": replayed.recording,
        "error_us": memory.error_ns / 1e3 if memory else -1.0,
    }


def costs(comm: Any) -> dict[str, float]:
    """Return what recording costs: a replay, and an eager call on the host.

    Graphs that were captured with and without, and calls with and without, in turns.
    """
    torch = device(comm)
    x = torch.zeros(1024, device="cuda")
    comm.all_reduce(x)
    launch = next(iter(comm._launches.values()))
    note, graphs = launch.note, {}

    def switch(on: bool) -> None:
        launch.note = note if on else None
        comm._calls.clear()
        for _ in range(2):
            comm.all_reduce(x)
        torch.cuda.synchronize()

    for on in (False, True):
        switch(on)
        graphs[on] = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graphs[on]):
            for _ in range(100):
                comm.all_reduce(x)
    replays: dict[bool, list[float]] = {True: [], False: []}
    host: dict[bool, list[float]] = {True: [], False: []}
    for turn in range(400):
        on = bool(turn % 2)
        comm.barrier()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graphs[on].replay()
        end.record()
        torch.cuda.synchronize()
        replays[on].append(begin.elapsed_time(end) * 1e3 / 100)
    for turn in range(80):
        on = bool(turn % 2)
        switch(on)
        began = time.perf_counter()
        for _ in range(100):
            comm.all_reduce(x)
        host[on].append((time.perf_counter() - began) / 100 * 1e6)
        torch.cuda.synchronize()
    launch.note = note
    return {
        "replay_us": statistics.median(replays[False]),
        "replay_recorded_us": statistics.median(replays[True]),
        "host_us": statistics.median(host[False]),
        "note_us": statistics.median(host[True]) - statistics.median(host[False]),
        "compiled": float("numba" in sys.modules),
    }


def judged(
    recording: Recording, ranks: int, calls: int, error_us: float
) -> Iterator[str]:
    """Yield what is wrong with a recording of so many calls of kernels."""
    numbers = [i for i, c in enumerate(recording.comms) if "/gpu" in c.name]
    mine = recording.calls[np.isin(recording.calls["comm"], numbers)]
    steps = recording.steps
    dropped = sum(d.steps for d in recording.dropped)
    for rank in range(ranks):
        many = int((mine["rank"] == rank).sum())
        if many < calls and not dropped:
            yield f"rank {rank}: {many} calls by kernels; want {calls}"
    if (mine["end"] <= mine["start"]).any():
        yield "a call ends before it begins"
    if (steps["end"] < steps["begin"]).any():
        yield "a step ends before it begins"
    if (steps["wait"] > steps["end"] - steps["begin"]).any():
        yield "a step waits longer than it lasts"
    if not (steps["kind"] != STEP_KINDS.index("kernel")).any():
        yield "there are kernels and no steps"
    late = 0
    keys = mine["comm"].astype(np.int64) << 40 | mine["seq"]
    for key in np.unique(keys).tolist():
        here = mine[keys == key]
        if len(here) == ranks:
            early = int(here["end"].min()) - int(here["start"].max())
            late += early < -2 * error_us * 1e3 - 1000
    if late:
        yield f"{late} calls end on a rank before another has begun: the clocks are off"
    both = [set(mine["seq"][mine["rank"] == r].tolist()) for r in range(ranks)]
    if not dropped and any(one != both[0] for one in both):
        yield "ranks number their calls differently"


def main() -> int:
    """Run the checks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    bad: list[str] = []
    found = stretto.spawn(recorded, num_ranks=args.ranks, deadline_s=120)
    error_us = max(one["error_us"] for one in found)
    print(f"clocks of GPUs against their host's: off by {error_us:.2f} us at most")
    if not 0 <= error_us < MOST_ERROR_US:
        bad.append(f"the stated error is {error_us} us; want less than {MOST_ERROR_US}")
    bad += [text for one in found for text in one["wrong"]]
    for name, calls in (("eager", CALLS * len(SIZES)), ("graph", REPLAYS)):
        recording = merge([one[name] for one in found])
        summary = summarise(recording)
        print(f"\n{name}:", *head(recording, summary), sep="\n  ")
        for title, rows in rows_of(summary).items():
            print(f"  {title}")
            for row in rows[:6]:
                print("   ", json.dumps(row))
        bad += [f"{name}: {w}" for w in judged(recording, args.ranks, calls, error_us)]
        bad += [f"{name}: {f.kind}" for f in diagnose(recording).findings]
        if args.out:
            args.out.mkdir(parents=True, exist_ok=True)
            write(args.out / f"{name}.trace", recording)
            write_perfetto(args.out / f"{name}.pftrace", recording)
    took = stretto.spawn(costs, num_ranks=args.ranks, deadline_s=120)
    worst = {key: max(one[key] for one in took) for key in took[0]}
    off, on = worst["replay_us"], worst["replay_recorded_us"]
    print(f"\na replayed all_reduce of 4 KiB: {off:.3f} us, recorded {on:.3f}")
    print(f"noting an eager call: {worst['note_us']:.3f} us of {worst['host_us']:.2f}")
    if on > off * 1.01 + 0.02:
        bad.append(f"a replay takes {on:.3f} us with recording, {off:.3f} us without")
    print(json.dumps(worst))
    for text in bad:
        print("WRONG", text)
    print("trace on GPUs:", f"{len(bad)} wrong" if bad else "all right")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
