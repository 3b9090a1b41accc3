"""Two hosts of two ranks, as namespaces of this machine: beside Gloo and Open MPI.

    python benchmarks/hosts.py [--rounds 3] [--mpi PREFIX] [--loss PERCENT] [--out FILE]

Each contender runs in turn, all ranks at once, round after round. A batch is a loop of
calls, timed from the first rank in to the last rank out (namespaces have one clock);
medians of all batches of all rounds count. The first call of a case is said apart, and
so is how long it took to connect. Every result is compared with what must come out.
PREFIX is an environment with Open MPI and mpi4py, whose ranks yield when idle: by
default this one, if it has them. It needs root. Where ranks exceed cores, say so with
the figures.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from hosts_table import SIZES, VERBS, joined, table

ROOT = Path(__file__).parents[1]
RANKS = 4
MOST = 1 << 24
"""Larger vectors are for all_reduce only."""


class Made(NamedTuple):
    """A call on its buffers, and what tells whether its result is right."""

    call: Callable[[], Any]
    is_right: Callable[[], bool]


def case(verb: str, nbytes: int, rank: int, make: Any) -> Made:
    """Return a call of `make(verb)`, on NumPy memory of this size."""
    part = max(1, nbytes // 4 // RANKS)
    whole = part * RANKS if nbytes >= 4 * RANKS else max(1, nbytes // 4)
    mine, each = np.float32(rank + 1), np.arange(1, RANKS + 1, dtype=np.float32)
    total = np.float32(each.sum())
    match verb:
        case "all_reduce":
            x, out = np.full(whole, mine), np.empty(whole, np.float32)
            want: Any = total
        case "all_gather":
            x, out = np.full(part, mine), np.empty(part * RANKS, np.float32)
            want = np.repeat(each, part)
        case "reduce_scatter":
            x, out = np.full(part * RANKS, mine), np.empty(part, np.float32)
            want = total
        case "all_to_all":
            x, out = np.full(part * RANKS, mine), np.empty(part * RANKS, np.float32)
            want = np.repeat(each, part)
        case "broadcast":
            x = out = np.full(whole, mine)
            want = np.float32(1)
        case _:
            x = out = np.zeros(1, np.float32)
            want = np.float32(0)
    return Made(make(verb, x, out), lambda: bool((out == want).all()))


def measure(rank: int, make: Any, barrier: Any) -> dict[str, Any]:
    """Return when each batch of every verb and size began and ended on this rank."""
    found: dict[str, Any] = {}
    now = time.monotonic
    for verb in os.environ.get("VERBS", ",".join(VERBS)).split(","):
        for nbytes, (batches, calls) in SIZES.items():
            is_large = nbytes > MOST and verb != "all_reduce"
            if is_large or (verb == "barrier" and nbytes > min(SIZES)):
                continue
            call, is_right = case(verb, nbytes, rank, make)
            barrier()
            began = now()
            call()
            first = began, now()
            right = is_right()
            spans = []
            for _ in range(batches):
                barrier()
                call()  # all set out together
                cpu, began = time.process_time(), now()
                for _ in range(calls):
                    call()
                spans.append((began, now(), time.process_time() - cpu))
            found[f"{verb} {nbytes}"] = {
                "first": first, "spans": spans, "right": right and is_right()
            }  # fmt: skip
            barrier()
    return found


def ours(rank: int, address: str) -> dict[str, Any]:
    """Measure stretto."""
    import stretto

    began = time.monotonic()
    comm = stretto.connect(rank, RANKS, f"tcp://{address}:29600", deadline_s=120)
    comm.barrier()
    connected = began, time.monotonic()

    def make(verb: str, x: Any, out: Any) -> Any:
        call = getattr(comm, verb)
        if verb == "barrier":
            return call
        if verb == "broadcast":
            return functools.partial(call, x)
        return functools.partial(call, x, out=out)

    found = measure(rank, make, comm.barrier)
    found["connect"] = {"first": connected, "spans": [], "right": True}
    found["choice"] = {n: comm.explain("all_reduce", n // 4) for n in SIZES}
    comm.close()
    return found


def gloo(rank: int, address: str) -> dict[str, Any]:
    """Measure torch.distributed on Gloo."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = os.environ["INTERFACE"]
    began = time.monotonic()
    dist.init_process_group(
        "gloo", init_method=f"tcp://{address}:29601", rank=rank, world_size=RANKS
    )
    dist.barrier()
    connected = began, time.monotonic()

    def make(verb: str, x: Any, out: Any) -> Any:
        if verb == "barrier":
            return dist.barrier
        x, out = torch.from_numpy(x), torch.from_numpy(out)
        match verb:
            case "all_reduce":  # it has no other form
                out.copy_(x)
                return functools.partial(_all_reduce, dist, x, out)
            case "all_gather":
                return functools.partial(dist.all_gather_into_tensor, out, x)
            case "reduce_scatter":
                return functools.partial(dist.reduce_scatter_tensor, out, x)
            case "all_to_all":
                return functools.partial(dist.all_to_all_single, out, x)
        return functools.partial(dist.broadcast, x, 0)

    found = measure(rank, make, dist.barrier)
    found["connect"] = {"first": connected, "spans": [], "right": True}
    dist.destroy_process_group()
    return found


def _all_reduce(dist: Any, x: Any, out: Any) -> None:
    """Combine in place, as Gloo does, what is copied there first."""
    out.copy_(x)
    dist.all_reduce(out)


def mpi(rank: int, address: str) -> dict[str, Any]:
    """Measure Open MPI."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD

    def make(verb: str, x: Any, out: Any) -> Any:
        match verb:
            case "all_reduce":
                return functools.partial(world.Allreduce, x, out)
            case "all_gather":
                return functools.partial(world.Allgather, x, out)
            case "reduce_scatter":
                return functools.partial(world.Reduce_scatter_block, x, out)
            case "all_to_all":
                return functools.partial(world.Alltoall, x, out)
            case "broadcast":
                return functools.partial(world.Bcast, x, 0)
        return world.Barrier

    return measure(world.rank, make, world.Barrier)


WORKERS = {"stretto": ours, "gloo": gloo, "mpi": mpi}


def work(name: str, rank: int, address: str) -> None:
    """Be one rank; write what it found."""
    if name == "mpi":
        from mpi4py import MPI

        rank = MPI.COMM_WORLD.rank
    found = WORKERS[name](rank, address)
    path = Path(f"{os.environ['RESULT']}.{rank}")
    path.write_text(json.dumps(found), encoding="utf-8")


def run(
    name: str, hosts: Any, args: argparse.Namespace, folder: Path
) -> dict[str, Any]:
    """Run all ranks of a contender once; return what they found."""
    results = [folder / f"result.{rank}" for rank in range(RANKS)]
    for result in results:
        result.unlink(missing_ok=True)
    secret = folder / "secret"
    secret.write_text("0123456789abcdef" * 2, encoding="ascii")
    secret.chmod(0o600)
    environment = {
        **os.environ,
        "RESULT": os.fspath(folder / "result"),
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
        until = time.monotonic() + args.patience
        for process in started:
            process.wait(max(0.1, until - time.monotonic()))
    except subprocess.TimeoutExpired:
        print(f"{name}: not within {args.patience} s", file=sys.stderr)
    finally:
        for process in started:
            process.kill()
            process.wait()
    if not all(result.exists() for result in results):
        return {}
    return joined([json.loads(r.read_text(encoding="utf-8")) for r in results])


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


def _lose(hosts: Any, percent: float) -> None:
    """Have each end of the wire drop so many packets in a hundred."""
    for host in range(2):
        queue = ["tc", "qdisc", "add", "dev", hosts.interface(host), "root"]
        lossy = [*queue, "netem", "limit", "10000", "loss", f"{percent}%"]
        subprocess.run(hosts.command(host, lossy), check=True)


def _usual_mpi() -> str:
    """Return this environment, where it has Open MPI."""
    has = (Path(sys.prefix) / "bin" / "mpirun").exists()
    return sys.prefix if has else ""


def main() -> None:
    """Run every contender in turn, and write what came of it."""
    from stretto.bench.machine import commit

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--patience", type=float, default=150.0, help="seconds a run")
    parser.add_argument(
        "--mpi", default=_usual_mpi(), help="where mpirun and mpi4py are"
    )
    parser.add_argument("--verbs", default=",".join(VERBS))
    parser.add_argument("--only", default="", help="names of contenders")
    parser.add_argument("--loss", type=float, default=0.0, help="per cent of packets")
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
                    if args.loss:
                        _lose(hosts, args.loss)
                    found = run(name, hosts, args, Path(folder))
                document["runs"][name].append(found)
                document["load"].append(os.getloadavg()[0])
                print(name, "load", os.getloadavg()[0], file=sys.stderr, flush=True)
    text = json.dumps(document)
    if args.out:
        Path(args.out).write_text(text + "\n", encoding="utf-8")
    print(table(document["runs"]))


if __name__ == "__main__":
    main()
