"""Two hosts of two ranks, as namespaces of this machine: beside Gloo and Open MPI.

    python benchmarks/hosts.py [--rounds 2] [--mpi PREFIX] [--out FILE]

Each contender runs in turn, all ranks at once, round after round; of all rounds the
least and the median count. PREFIX is an environment with Open MPI and mpi4py, whose
ranks yield when idle. It needs root. Where ranks exceed cores, say so with the figures.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
SIZES = {8: 200, 4096: 200, 1 << 16: 100, 1 << 20: 30, 1 << 24: 6, 1 << 26: 3}
VERBS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
RANKS = 4


def measure(rank: int, calls: dict[str, Any], barrier: Any) -> dict[str, Any]:
    """Return times and CPU of every verb and size, of this rank's own calls."""
    found: dict[str, Any] = {}
    for verb, make in calls.items():
        if verb not in os.environ.get("VERBS", ",".join(VERBS)).split(","):
            continue
        for nbytes, rounds in SIZES.items():
            if nbytes > 1 << 24 and verb != "all_reduce":
                continue
            call = make(nbytes)
            if call is None:
                continue
            for _ in range(3):
                call()
            barrier()
            times, cpu = [], time.process_time()
            for _ in range(rounds):
                begun = time.perf_counter()
                call()
                times.append((time.perf_counter() - begun) * 1e6)
            used = (time.process_time() - cpu) / rounds * 1e6
            found[f"{verb} {nbytes}"] = {
                "least_us": round(min(times), 1),
                "median_us": round(statistics.median(times), 1),
                "cpu_us": round(used, 1),
            }
            barrier()
    return found


def ours(rank: int, address: str) -> dict[str, Any]:
    """Measure stretto."""
    import stretto

    comm = stretto.connect(rank, RANKS, f"tcp://{address}:29600", deadline_s=120)

    def all_reduce(nbytes: int) -> Any:
        x = np.ones(nbytes // 4, np.float32)
        out = np.empty_like(x)
        comm.all_reduce(x, out=out)
        assert out[0] == RANKS
        return lambda: comm.all_reduce(x, out=out)

    def all_gather(nbytes: int) -> Any:
        x = np.ones(max(1, nbytes // 4 // RANKS), np.float32)
        out = np.empty(x.size * RANKS, np.float32)
        return lambda: comm.all_gather(x, out=out)

    def reduce_scatter(nbytes: int) -> Any:
        x = np.ones(max(1, nbytes // 4 // RANKS) * RANKS, np.float32)
        out = np.empty(x.size // RANKS, np.float32)
        return lambda: comm.reduce_scatter(x, out=out)

    def all_to_all(nbytes: int) -> Any:
        x = np.ones(max(1, nbytes // 4 // RANKS) * RANKS, np.float32)
        out = np.empty_like(x)
        return lambda: comm.all_to_all(x, out=out)

    made = (all_reduce, all_gather, reduce_scatter, all_to_all)
    found = measure(rank, dict(zip(VERBS, made, strict=True)), comm.barrier)
    found["choice"] = {n: comm.explain("all_reduce", n // 4) for n in SIZES}
    comm.close()
    return found


def gloo(rank: int, address: str) -> dict[str, Any]:
    """Measure torch.distributed on Gloo."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = os.environ["INTERFACE"]
    dist.init_process_group(
        "gloo", init_method=f"tcp://{address}:29601", rank=rank, world_size=RANKS
    )

    def parts(nbytes: int) -> int:
        return max(1, nbytes // 4 // RANKS)

    def all_reduce(nbytes: int) -> Any:
        x = torch.ones(nbytes // 4)
        return lambda: dist.all_reduce(x)

    def all_gather(nbytes: int) -> Any:
        x, out = torch.ones(parts(nbytes)), torch.empty(parts(nbytes) * RANKS)
        return lambda: dist.all_gather_into_tensor(out, x)

    def reduce_scatter(nbytes: int) -> Any:
        x, out = torch.ones(parts(nbytes) * RANKS), torch.empty(parts(nbytes))
        return lambda: dist.reduce_scatter_tensor(out, x)

    def all_to_all(nbytes: int) -> Any:
        x = torch.ones(parts(nbytes) * RANKS)
        out = torch.empty_like(x)
        return lambda: dist.all_to_all_single(out, x)

    made = (all_reduce, all_gather, reduce_scatter, all_to_all)
    found = measure(rank, dict(zip(VERBS, made, strict=True)), dist.barrier)
    dist.destroy_process_group()
    return found


def mpi(rank: int, address: str) -> dict[str, Any]:
    """Measure Open MPI."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD

    def all_reduce(nbytes: int) -> Any:
        x = np.ones(nbytes // 4, np.float32)
        out = np.empty_like(x)
        return lambda: world.Allreduce(x, out)

    def all_gather(nbytes: int) -> Any:
        x = np.ones(max(1, nbytes // 4 // RANKS), np.float32)
        out = np.empty(x.size * RANKS, np.float32)
        return lambda: world.Allgather(x, out)

    def reduce_scatter(nbytes: int) -> Any:
        x = np.ones(max(1, nbytes // 4 // RANKS) * RANKS, np.float32)
        out = np.empty(x.size // RANKS, np.float32)
        return lambda: world.Reduce_scatter_block(x, out)

    def all_to_all(nbytes: int) -> Any:
        x = np.ones(max(1, nbytes // 4 // RANKS) * RANKS, np.float32)
        out = np.empty_like(x)
        return lambda: world.Alltoall(x, out)

    made = (all_reduce, all_gather, reduce_scatter, all_to_all)
    return measure(world.rank, dict(zip(VERBS, made, strict=True)), world.Barrier)


WORKERS = {"stretto": ours, "gloo": gloo, "mpi": mpi}


def work(name: str, rank: int, address: str) -> None:
    """Be one rank; rank 0 writes what it found."""
    if name == "mpi":
        from mpi4py import MPI

        rank = MPI.COMM_WORLD.rank
    found = WORKERS[name](rank, address)
    if rank == 0:
        Path(os.environ["RESULT"]).write_text(json.dumps(found), encoding="utf-8")


def run(
    name: str, hosts: Any, args: argparse.Namespace, folder: Path
) -> dict[str, Any]:
    """Run all ranks of a contender once; return what rank 0 found."""
    result = folder / "result.json"
    result.unlink(missing_ok=True)
    secret = folder / "secret"
    secret.write_text("0123456789abcdef" * 2, encoding="ascii")
    secret.chmod(0o600)
    environment = {
        **os.environ,
        "RESULT": os.fspath(result),
        "STRETTO_SECRET_FILE": os.fspath(secret),
        "PYTHONPATH": os.fspath(ROOT / "src"),
        "OMP_NUM_THREADS": "1",
        "VERBS": args.verbs,
    }
    script = os.fspath(Path(__file__).resolve())
    if name == "mpi":
        started = [_mpirun(hosts, args, folder, environment, script)]
    else:
        started = [
            subprocess.Popen(
                hosts.command(
                    rank // 2,
                    [
                        sys.executable,
                        script,
                        "--work",
                        name,
                        str(rank),
                        hosts.addresses[0],
                    ],
                ),
                env={**environment, "INTERFACE": hosts.interface(rank // 2)},
            )
            for rank in range(RANKS)
        ]
    try:
        for process in started:
            process.wait(args.patience)
    except subprocess.TimeoutExpired:
        print(f"{name}: not within {args.patience} s", file=sys.stderr)
    finally:
        for process in started:
            process.kill()
            process.wait()
    if not result.exists():
        return {}
    found: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
    return found


def _mpirun(
    hosts: Any, args: argparse.Namespace, folder: Path, environment: Any, script: str
) -> subprocess.Popen[bytes]:
    """Start Open MPI's ranks; a script stands in for ssh, and enters a namespace."""
    ssh = folder / "ssh.sh"
    lines = [
        "#!/bin/sh",
        'while [ "${1#-}" != "$1" ]; do shift; done',
        'host="$1"; shift',
    ]
    for host, name in enumerate(hosts.names):
        enter = hosts.command(host, ["sh", "-c", "$*"])
        inside = " ".join(enter[:4])
        lines.append(
            f'[ "$host" = {name} ] && exec {inside} unshare --uts --ipc sh -c '
            f'"hostname {name}; $*"'
        )
    ssh.write_text("\n".join([*lines, "exit 1"]) + "\n", encoding="ascii")
    ssh.chmod(0o755)
    subnet = hosts.addresses[0].rpartition(".")[0] + ".0/24"
    prefix = Path(args.mpi)
    words = [
        os.fspath(prefix / "bin" / "mpirun"), "--allow-run-as-root",
        "--prtemca", "plm_ssh_agent", os.fspath(ssh),
        "--host", f"{hosts.names[0]}:2,{hosts.names[1]}:2", "-n", str(RANKS),
        "--prtemca", "prte_if_include", subnet,
        "--mca", "btl", "tcp,sm,self", "--mca", "btl_tcp_if_include", subnet,
        "--mca", "pml", "ob1", "--mca", "mpi_yield_when_idle", "1",
        "--bind-to", "none", "--oversubscribe",
        "-x", "RESULT", "-x", "OMP_NUM_THREADS", "-x", "VERBS",
        os.fspath(prefix / "bin" / "python"), script, "--work", "mpi", "0", "x",
    ]  # fmt: skip
    return subprocess.Popen(hosts.command(0, words), env=environment)


def main() -> None:
    """Run every contender in turn, and write what came of it."""
    from stretto.bench.machine import commit

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--patience", type=float, default=150.0, help="seconds a run")
    parser.add_argument("--mpi", default="", help="a prefix with mpirun and mpi4py")
    parser.add_argument("--verbs", default=",".join(VERBS))
    parser.add_argument("--only", default="", help="names of contenders")
    parser.add_argument("--out", default="")
    parser.add_argument("--work", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        work(args.work[0], int(args.work[1]), args.work[2])
        return
    from stretto.testing.namespaces import TwoHosts

    names = ["stretto", "gloo", *(["mpi"] if args.mpi else [])]
    names = [n for n in names if not args.only or n in args.only.split(",")]
    document: dict[str, Any] = {
        "command": " ".join(["python", *sys.argv]),
        "commit": commit(),
        "cores": os.cpu_count(),
        "load": [os.getloadavg()[0]],
        "runs": {name: [] for name in names},
    }
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(args.rounds):
            for name in names:
                with TwoHosts() as hosts:
                    found = run(name, hosts, args, Path(folder))
                document["runs"][name].append(found)
                document["load"].append(os.getloadavg()[0])
                print(name, "load", os.getloadavg()[0], file=sys.stderr, flush=True)
    text = json.dumps(document, indent=1)
    if args.out:
        Path(args.out).write_text(text + "\n", encoding="utf-8")
    print(table(document["runs"]))


def table(runs: dict[str, list[dict[str, Any]]]) -> str:
    """Return least (median) microseconds of all rounds, by verb and size."""
    lines = ["| call | " + " | ".join(runs) + " |", "|---|" + "---|" * len(runs)]
    for verb in VERBS:
        for nbytes in SIZES:
            key, cells = f"{verb} {nbytes}", []
            for rounds in runs.values():
                rows = [found[key] for found in rounds if key in found]
                if not rows:
                    cells.append("-")
                    continue
                least = min(row["least_us"] for row in rows)
                median = min(row["median_us"] for row in rows)
                cpu = min(row["cpu_us"] for row in rows)
                cells.append(f"{least:.0f} ({median:.0f}), CPU {cpu:.0f}")
            if set(cells) != {"-"}:
                lines.append(f"| {key} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
