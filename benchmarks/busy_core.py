"""All-reduce of two ranks while other processes keep the cores busy.

    python benchmarks/busy_core.py [--busy 0,1,2] [--out busy_core_x2]

Nobody is pinned. Every call is timed by itself on rank 0; the ranks agree now and then
whether the time is over. Open MPI does the same calls in ranks that mpirun has started;
Gloo in processes of its own. A rank that is not scheduled cannot answer, so what counts
is how often that happens: the median and the mean.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

SIZES = (8, 1 << 20)
RESULTS = Path(__file__).parent / "results"
PEERS = ("stretto", "Open MPI", "Gloo")
CHECK_EVERY = 64


def sample(call: Callable[[Any], object], nbytes: int, seconds: float) -> list[float]:
    """Return how long each call took, in us; all ranks stop after the same call."""
    x, over = np.zeros(nbytes // 4, np.float32), np.zeros(1, np.float32)
    call(x)
    took: list[float] = []
    until = time.perf_counter() + seconds
    while True:
        for _ in range(CHECK_EVERY):
            start = time.perf_counter()
            call(x)
            took.append((time.perf_counter() - start) * 1e6)
        over[0] = time.perf_counter() > until
        call(over)
        if over[0]:
            return took


def figures(call: Callable[[Any], object], seconds: float) -> list[dict[str, float]]:
    """Return the figures of every size."""
    rows = []
    for nbytes in SIZES:
        took = np.sort(sample(call, nbytes, seconds))
        p50, p90, p99 = np.percentile(took, (50, 90, 99))
        rows.append(
            {
                "bytes": nbytes,
                "calls": len(took),
                "median_us": round(float(p50), 2),
                "p90_us": round(float(p90), 2),
                "p99_us": round(float(p99), 2),
                "mean_us": round(float(np.mean(took)), 2),
            }
        )
    return rows


def stretto_rank(comm: Any, seconds: float) -> list[dict[str, float]]:
    """Return what one rank of stretto sees."""
    return figures(comm.all_reduce, seconds)


def mpi_rank(seconds: float) -> None:
    """Print what rank 0 of Open MPI sees."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    rows = figures(lambda x: world.Allreduce(MPI.IN_PLACE, x), seconds)
    if world.rank == 0:
        print(json.dumps(rows))


def gloo_rank(rank: int, store: str, seconds: float) -> None:
    """Print what rank 0 of Gloo sees."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=2
    )
    rows = figures(lambda x: dist.all_reduce(torch.from_numpy(x)), seconds)
    if rank == 0:
        print(json.dumps(rows))
    dist.destroy_process_group()


def measure(peer: str, seconds: float) -> list[dict[str, float]]:
    """Return a contender's figures."""
    me = [sys.executable, __file__, "--seconds", str(seconds)]
    if peer == "stretto":
        import stretto

        rows: list[dict[str, float]] = stretto.spawn(
            stretto_rank, seconds, num_ranks=2
        )[0]
        return rows
    if peer == "Open MPI":
        words = ["mpirun", "--allow-run-as-root", "-n", "2", "--bind-to", "none", *me]
        done = subprocess.run(
            [*words, "--be", "mpi"], stdout=subprocess.PIPE, check=True, timeout=120
        )
        return list(json.loads(done.stdout))
    with tempfile.TemporaryDirectory() as folder:
        store = os.path.join(folder, "store")  # noqa: PTH118
        ranks = [
            subprocess.Popen(
                [*me, "--be", f"gloo:{rank}:{store}"], stdout=subprocess.PIPE
            )
            for rank in (0, 1)
        ]
        said = [rank.communicate(timeout=120)[0] for rank in ranks]
        return list(json.loads(said[0]))


def main() -> None:
    """Measure, print, and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--busy", default="0,1")
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--be", default="")
    parser.add_argument("--out", default="")
    options = parser.parse_args()
    kind, _, more = options.be.partition(":")
    if kind == "mpi":
        mpi_rank(options.seconds)
    elif kind == "gloo":
        rank, _, store = more.partition(":")
        gloo_rank(int(rank), store, options.seconds)
    else:
        report(race(options), options)


def race(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return everybody's figures, beside so many busy processes."""
    rows: list[dict[str, Any]] = []
    for busy in map(int, options.busy.split(",")):
        spinners = [
            subprocess.Popen([sys.executable, "-c", "while True: pass"])
            for _ in range(busy)
        ]
        try:
            for peer in PEERS:
                found = measure(peer, options.seconds)
                rows += [{"busy": busy, "peer": peer, **row} for row in found]
                print(rows[-len(SIZES) :], flush=True)
        finally:
            for spinner in spinners:
                spinner.kill()
                spinner.wait()
    return rows


def report(rows: list[dict[str, Any]], options: argparse.Namespace) -> None:
    """Print a table, and write it beside the raw figures when asked."""
    from stretto.bench.machine import commit

    document = {
        "command": " ".join(["python", *sys.argv]),
        "commit": commit(),
        "cores": os.cpu_count(),
        "niceness": os.nice(0),
        "python": platform.python_version(),
        "rows": rows,
    }
    lines = [
        "# All-reduce of two ranks beside busy processes",
        "",
        (
            f"`{document['command']}`, commit {document['commit']},"
            f" niceness {document['niceness']}."
        ),
        f"{document['cores']} cores, nobody pinned. Microseconds a call on rank 0.",
        "",
        "| busy processes | bytes | peer | median | 90 % | 99 % | mean |",
        "| ---: | ---: | --- | ---: | ---: | ---: | ---: |",
    ]
    lines += [
        f"| {r['busy']} | {r['bytes']} | {r['peer']} | {r['median_us']} | "
        f"{r['p90_us']} | {r['p99_us']} | {r['mean_us']} |"
        for r in sorted(rows, key=lambda r: (r["busy"], r["bytes"]))
    ]
    text = "\n".join(lines) + "\n"
    print(text)
    if options.out:
        raw = json.dumps(document, indent=1) + "\n"
        (RESULTS / f"{options.out}.json").write_text(raw, encoding="utf-8")
        (RESULTS / f"{options.out}.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
