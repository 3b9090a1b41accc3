"""Collectives between processes of one host: stretto, Gloo and Open MPI side by side.

    python benchmarks/cpu_collectives.py --ranks 2 --out cpu_collectives_x2

starts itself under mpirun. In every rank the three live together and take turns, round
by round, on the same sizes; every result is compared with NumPy's before it is timed.
A time is that of the slowest rank. Vectors are float32 and called again without being
touched in between, as the usual MPI benchmarks do; all_reduce is in place everywhere.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Call = Callable[[], object]
SIZES = [8, 64, 512, 1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 18]
SIZES += [1 << 20, 1 << 22, 1 << 24, 1 << 26]
OTHERS = ("all_gather", "reduce_scatter", "all_to_all", "broadcast")
RESULTS = Path(__file__).parent / "results"


def main() -> None:
    """Start the ranks, or be one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--budget-ms", type=float, default=4.0)
    parser.add_argument("--largest", type=int, default=SIZES[-1])
    parser.add_argument("--collectives", default=",".join(("all_reduce", *OTHERS)))
    parser.add_argument("--out", default="")
    options = parser.parse_args()
    if "OMPI_COMM_WORLD_RANK" in os.environ:
        work(options)
        return
    wide = ["--map-by", ":oversubscribe"] if options.ranks > _cores() else []
    bind = ["--bind-to", "none" if wide else "core"]
    command = ["mpirun", "--allow-run-as-root", "-n", str(options.ranks), *wide, *bind]
    raise SystemExit(subprocess.call([*command, sys.executable, *sys.argv]))


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def work(options: argparse.Namespace) -> None:
    """Time every collective at every size, on one rank."""
    from mpi4py import MPI

    import stretto

    world = MPI.COMM_WORLD
    gloo = _gloo(world)
    rows: list[dict[str, Any]] = []
    with stretto.connect() as comm:
        for name in options.collectives.split(","):
            for nbytes in (s for s in SIZES if s <= options.largest):
                peers = contenders(name, nbytes, comm, world, gloo)
                times = race(peers, world, options.rounds, options.budget_ms)
                rows += [
                    {"collective": name, "bytes": nbytes, "peer": peer, **figures}
                    for peer, figures in times.items()
                ]
                if world.rank == 0:
                    line = "  ".join(
                        f"{p} {f['median_us']:.2f}" for p, f in times.items()
                    )
                    print(f"{name} {nbytes}: {line}", flush=True)
    gloo.destroy_process_group()
    if world.rank == 0:
        report(rows, options)


def _gloo(world: Any) -> Any:
    """Return torch.distributed with Gloo started; each process has one thread."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    store = f"/tmp/stretto-bench-{world.bcast(os.getpid())}"
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=world.rank, world_size=world.size
    )
    return dist


def contenders(
    name: str, nbytes: int, comm: Any, world: Any, gloo: Any
) -> dict[str, Call]:
    """Return what takes part, each checked against NumPy first."""
    ranks, count = world.size, max(nbytes // 4, world.size)
    part = count // ranks
    whole, each = part * ranks if name != "all_reduce" else count, part
    inputs, outputs = {
        "all_reduce": (whole, whole),
        "broadcast": (whole, whole),
        "all_gather": (each, whole),
        "reduce_scatter": (whole, each),
        "all_to_all": (whole, whole),
    }[name]
    found: dict[str, Call] = {}
    for peer, make in PEERS.items():
        shared = peer == "stretto, comm.empty()"

        def memory(n: int, shared: bool = shared) -> Any:
            return comm.empty((n,), "float32") if shared else np.empty(n, np.float32)

        x = memory(inputs)
        in_place = name in ("all_reduce", "broadcast")
        out = x if in_place else memory(outputs)
        call = make(name, x, out, comm, world, gloo)
        if call is None:
            continue
        check(name, peer, call, x, out, world)
        x[:] = 0
        found[peer] = call
    return found


def check(name: str, peer: str, call: Call, x: Any, out: Any, world: Any) -> None:
    """Raise unless the call gives what NumPy gives."""
    every = [
        np.random.default_rng(q).integers(0, 100, x.size).astype(np.float32)
        for q in range(world.size)
    ]
    x[:] = every[world.rank]
    part = x.size // world.size
    mine = slice(world.rank * part, (world.rank + 1) * part)
    want = {
        "all_reduce": lambda: sum(every[1:], every[0]),
        "broadcast": lambda: every[0],
        "all_gather": lambda: np.concatenate(every),
        "reduce_scatter": lambda: sum(every[1:], every[0])[mine],
        "all_to_all": lambda: np.concatenate([e[mine] for e in every]),
    }[name]()
    call()
    wrong = int((out != want).sum())
    if world.allreduce(wrong):
        raise SystemExit(f"{peer}: {name} of {x.nbytes} bytes: {wrong} wrong elements")


def _stretto(name: str, x: Any, out: Any, comm: Any, world: Any, gloo: Any) -> Call:
    method = getattr(comm, name)
    if x is out:
        return lambda: method(x)
    return lambda: method(x, out=out)


def _mpi(name: str, x: Any, out: Any, comm: Any, world: Any, gloo: Any) -> Call:
    from mpi4py import MPI

    return {
        "all_reduce": lambda: world.Allreduce(MPI.IN_PLACE, x),
        "broadcast": lambda: world.Bcast(x, root=0),
        "all_gather": lambda: world.Allgather(x, out),
        "reduce_scatter": lambda: world.Reduce_scatter_block(x, out),
        "all_to_all": lambda: world.Alltoall(x, out),
    }[name]


def _torch(
    name: str, x: Any, out: Any, comm: Any, world: Any, gloo: Any
) -> Call | None:
    import torch

    t, into = torch.from_numpy(x), torch.from_numpy(out)
    calls: dict[str, Call] = {
        "all_reduce": lambda: gloo.all_reduce(t),
        "broadcast": lambda: gloo.broadcast(t, 0),
        "all_gather": lambda: gloo.all_gather_into_tensor(into, t),
        "all_to_all": lambda: gloo.all_to_all_single(into, t),
    }
    return calls.get(name)


PEERS = {
    "stretto, comm.empty()": _stretto,
    "stretto, private": _stretto,
    "Open MPI": _mpi,
    "Gloo": _torch,
}


def race(
    peers: dict[str, Call], world: Any, rounds: int, budget_ms: float
) -> dict[str, dict[str, float]]:
    """Let contenders take turns; return each one's figures over the rounds."""
    repeats = {}
    for peer, call in peers.items():
        took = min(world.allreduce(_once(call, 2, world)) for _ in range(2))
        average = max(took / world.size, 1e-7)
        repeats[peer] = max(1, min(2000, int(budget_ms * 1e-3 / average)))
    samples: dict[str, list[float]] = {peer: [] for peer in peers}
    for _ in range(rounds):
        for peer, call in peers.items():
            took = _once(call, repeats[peer], world)
            samples[peer].append(max(world.allgather(took)) * 1e6)
    return {peer: _figures(np.sort(times)) for peer, times in samples.items()}


def _once(call: Call, repeats: int, world: Any) -> float:
    call()
    world.Barrier()
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - start) / repeats


def _figures(times: Any) -> dict[str, float]:
    low, middle, high = np.percentile(times, (25, 50, 75))
    return {
        "median_us": round(float(middle), 3),
        "p25_us": round(float(low), 3),
        "p75_us": round(float(high), 3),
        "best_us": round(float(times[0]), 3),
        "rounds": len(times),
    }


def report(rows: list[dict[str, Any]], options: argparse.Namespace) -> None:
    """Print the summary, and write it as JSON and Markdown when asked."""
    import mpi4py
    import torch

    ratios = geomeans(rows, "median_us")
    document = {
        "command": " ".join(["python", *sys.argv]),
        "commit": _git("rev-parse", "--short", "HEAD"),
        "changed_since": bool(_git("status", "--porcelain", "--", "src")),
        "ranks": options.ranks,
        "cores": _cores() if options.ranks > 1 else 1,
        "machine": _processor(),
        "load_average": os.getloadavg()[0],
        "niceness": os.nice(0),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "mpi4py": mpi4py.__version__,
        },
        "geomeans": ratios,
        "geomeans_of_best": geomeans(rows, "best_us"),
        "rows": rows,
    }
    text = markdown(document)
    print(text)
    if options.out:
        RESULTS.mkdir(exist_ok=True)
        raw = json.dumps(document, indent=1) + "\n"
        (RESULTS / f"{options.out}.json").write_text(raw, encoding="utf-8")
        (RESULTS / f"{options.out}.md").write_text(text, encoding="utf-8")


def geomeans(rows: list[dict[str, Any]], figure: str) -> dict[str, dict[str, float]]:
    """Return how many times faster than each peer stretto is, by geomean of sizes."""
    found: dict[str, dict[str, float]] = {}
    for name in dict.fromkeys(r["collective"] for r in rows):
        times = {
            (r["peer"], r["bytes"]): r[figure] for r in rows if r["collective"] == name
        }
        sizes = sorted({b for _, b in times})
        for ours in (p for p in PEERS if p.startswith("stretto")):
            for peer in ("Open MPI", "Gloo"):
                logs = [
                    np.log(times[peer, b] / times[ours, b])
                    for b in sizes
                    if (peer, b) in times
                ]
                if logs:
                    key = f"{ours} over {peer}"
                    found.setdefault(name, {})[key] = round(
                        float(np.exp(np.mean(logs))), 2
                    )
    return found


def markdown(document: dict[str, Any]) -> str:
    """Return the document as a page."""
    lines = [
        f"# Collectives of {document['ranks']} processes on one host",
        "",
        f"`{document['command']}`, commit {document['commit']}"
        + (" with changes in src" if document["changed_since"] else "")
        + f"; {document['machine']}; load average {document['load_average']:.1f}, "
        f"niceness {document['niceness']}; "
        + ", ".join(f"{k} {v}" for k, v in document["versions"].items())
        + ". Microseconds a call, median over interleaved rounds (25 to 75 %), the "
        "slowest rank counts.",
        "",
    ]
    for name, ratios in document["geomeans"].items():
        rows = [r for r in document["rows"] if r["collective"] == name]
        peers = list(dict.fromkeys(r["peer"] for r in rows))
        lines += [f"## {name}", ""]
        best = document["geomeans_of_best"][name]
        lines += [
            f"- {key}: {value}x by geomean ({best[key]}x by each one's best round)"
            for key, value in ratios.items()
        ]
        lines += ["", "| bytes | " + " | ".join(peers) + " |"]
        lines += ["| ---: " * (len(peers) + 1) + "|"]
        for nbytes in dict.fromkeys(r["bytes"] for r in rows):
            cells = [
                f"{r['median_us']:.2f} ({r['p25_us']:.2f}-{r['p75_us']:.2f})"
                for r in rows
                if r["bytes"] == nbytes
            ]
            lines.append(f"| {nbytes} | " + " | ".join(cells) + " |")
        lines.append("")
    return "\n".join(lines)


def _git(*words: str) -> str:
    done = subprocess.run(
        ["git", *words], capture_output=True, text=True, check=False, cwd=RESULTS.parent
    )
    return done.stdout.strip()


def _processor() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    names = [line.partition(": ")[2] for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.processor()}, {os.cpu_count()} cores"


if __name__ == "__main__":
    main()
