"""Calls, connections and transfers of two trees, in turn, on one machine.

    python benchmarks/fabric_before_after.py BEFORE AFTER [--rounds 10] [--parts near]

BEFORE and AFTER: roots of two checkouts. Each round starts fresh processes of each; the
table has least times, their ratio, and the ratio of medians. Parts: calls of two ranks
and transfers (near), imports, started calls of torch, two hosts (namespaces: needs
root), and footprints, which are no times: memory and descriptors.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

SIZES = (8, 1 << 16, 1 << 20)
PEERS = 8


def body(comm: Any) -> dict[str, float]:
    """Time calls on a rank: what its loop sees."""
    out = {}
    for nbytes, count in ((8, 400), (1 << 16, 400), (1 << 20, 60)):
        x = np.ones(nbytes // 4, np.float32)
        for _ in range(200):
            comm.all_reduce(x)
        times = []
        for _ in range(7):
            comm.barrier()
            begun = time.perf_counter()
            for _ in range(count):
                comm.all_reduce(x)
            times.append((time.perf_counter() - begun) / count)
        out[f"all_reduce {nbytes}"] = min(times)
    x, y = np.ones(16384, np.float32), np.empty(2 * 16384, np.float32)
    for _ in range(100):
        comm.all_gather(x, out=y)
    begun = time.perf_counter()
    for _ in range(500):
        comm.all_gather(x, out=y)
    out["all_gather 65536"] = (time.perf_counter() - begun) / 500
    return out


def child(names: Sequence[str]) -> None:
    """Share memory of engines until nobody listens."""
    from stretto.transfer import Engine

    with ExitStack() as stack:
        engines = [
            stack.enter_context(Engine(name, listen="127.0.0.1:0", secret=b"s" * 32))
            for name in names
        ]
        for engine in engines:
            engine.share(engine.arena(1 << 23), "buf")
        print(*(engine.address for engine in engines), flush=True)
        sys.stdin.readline()


def _waited(view: Any, data: Any) -> None:
    view.put(data).wait(10)


def transfers(engine: Any, kind: str, where: str, out: dict[str, float]) -> None:
    """Time connections and puts, prepared and not; what the last one put is read."""
    times = []
    for last in (*[False] * 8, True):
        begun = time.perf_counter()
        peer = engine.connect(where).wait(20)
        times.append(time.perf_counter() - begun)
        if not last:
            peer.close()
    out[f"connect {kind}"] = statistics.median(times)
    region = peer.region("buf").wait(20)
    for nbytes in SIZES:
        data = np.full(nbytes, nbytes % 251, np.uint8)
        view = region[:nbytes]
        put = view.prepare_put(data)
        for name, one, count in (
            (f"prepared put {nbytes} {kind}", put, 600),
            (f"put {nbytes} {kind}", partial(_waited, view, data), 300),
        ):
            times = []
            for _ in range(count):
                begun = time.perf_counter()
                one()
                times.append(time.perf_counter() - begun)
            out[name] = statistics.median(times[count // 4 :])
        back = np.zeros(nbytes, np.uint8)
        view.get(back).wait(10)
        assert (back == data).all(), f"{nbytes} bytes by {kind} are wrong"
    peer.close()


def near() -> dict[str, float]:
    """Time calls of two ranks, and transfers to an engine beside this one."""
    import stretto

    begun = time.perf_counter()
    ranks = stretto.spawn(body, num_ranks=2)
    out = {"spawn and call": time.perf_counter() - begun}
    out |= {name: max(rank[name] for rank in ranks) for name in ranks[0]}
    from stretto.transfer import Engine

    name = f"t{uuid.uuid4().hex[:8]}"
    with other(name) as address, Engine(f"h{name}", secret=b"s" * 32) as engine:
        transfers(engine, "near", name, out)
        transfers(engine, "tcp", address, out)
    return out


@contextmanager
def other(*names: str) -> Iterator[str]:
    """Have a process beside with engines of these names; yield the first's address."""
    command = [sys.executable, __file__, "--child", *names]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.communicate("\n")


def imports() -> dict[str, float]:
    """Time imports, each in a fresh process; that of torch comes before."""
    code = "import time, sys\n{}\nb = time.perf_counter()\nimport {}\n"
    code += "print(time.perf_counter() - b)"
    out = {}
    for first, name in (
        ("", "stretto"), ("", "stretto.transfer"), ("import torch", "stretto.torch"),
    ):  # fmt: skip
        run = [sys.executable, "-c", code.format(first, name)]
        environment = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
        times = [
            float(subprocess.check_output(run, text=True, env=environment))
            for _ in range(3)
        ]
        out[f"import {name}"] = min(times)
    return out


def torch_rank(rank: int, folder: str) -> None:
    """Time started calls of one of two ranks; the first says what it found."""
    import torch
    import torch.distributed as dist

    import stretto.torch  # noqa: F401 - registers the backend

    torch.set_num_threads(1)
    dist.init_process_group(
        "stretto", init_method=f"file://{folder}/meet", rank=rank, world_size=2
    )
    out = {}
    for nbytes, count in ((8, 1000), (1 << 16, 500), (1 << 20, 60)):
        x = torch.ones(nbytes // 4)
        times = []
        for _ in range(9):
            dist.barrier()
            begun = time.perf_counter()
            for _ in range(count):
                dist.all_reduce(x, async_op=True).wait()
            times.append((time.perf_counter() - begun) / count)
            x.fill_(1)
        out[f"torch, started all_reduce {nbytes}"] = min(times[2:])
    dist.destroy_process_group()
    if rank == 0:
        Path(folder, "found").write_text(json.dumps(out), encoding="ascii")


def far_rank(rank: int, folder: str, address: str) -> None:
    """Time calls of one of two ranks on two hosts; the first says what it found."""
    import stretto

    with stretto.connect(rank, 2, f"tcp://{address}:29600", deadline_s=60) as comm:
        out = {f"two hosts, {name}": us for name, us in body(comm).items()}
    if rank == 0:
        Path(folder, "found").write_text(json.dumps(out), encoding="ascii")


def of_ranks(kind: str) -> dict[str, float]:
    """Run two ranks of a kind, each a process; return what the first has found."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        secret = Path(folder, "secret")
        secret.write_text("0123456789abcdef" * 2, encoding="ascii")
        secret.chmod(0o600)
        environment = {**os.environ, "STRETTO_SECRET_FILE": str(secret)}
        hosts: Any = None
        if kind == "hosts":
            from stretto.testing.namespaces import TwoHosts

            hosts = stack.enter_context(TwoHosts())
        started = []
        for rank in (0, 1):
            command = [sys.executable, __file__, f"--{kind}", str(rank), folder]
            if hosts is not None:
                command = hosts.command(rank, [*command, hosts.addresses[0]])
            started.append(subprocess.Popen(command, env=environment))
        try:
            for one in started:
                assert one.wait(100) == 0, f"a rank of {kind} failed"
        finally:
            for one in started:
                one.kill()
        found: dict[str, float] = json.loads(Path(folder, "found").read_text())
        return found


def feet(comm: Any) -> tuple[int, int]:
    """Return what a rank holds once it has called: memory in KB, descriptors."""
    body(comm)
    return held()


def held() -> tuple[int, int]:
    """Return this process's private memory in KB, and its open descriptors."""
    text = Path("/proc/self/smaps_rollup").read_text(encoding="ascii")
    private = re.findall(r"^Private_(?:Clean|Dirty): *(\d+)", text, re.MULTILINE)
    return sum(map(int, private)), sum(1 for _ in Path("/proc/self/fd").iterdir())


def footprints() -> dict[str, float]:
    """Return memory and descriptors of a rank, and of each peer of an engine."""
    import stretto
    from stretto.transfer import Engine

    ranks = stretto.spawn(feet, num_ranks=2)
    out = {"KB, rank of two": float(max(kb for kb, _ in ranks))}
    out["descriptors, rank of two"] = float(max(fds for _, fds in ranks))
    names = [f"t{uuid.uuid4().hex[:8]}" for _ in range(1 + PEERS)]
    with other(*names) as said, Engine(f"h{names[0]}", secret=b"s" * 32) as engine:
        addresses = said.split()
        for kind, some in (("near", names), ("tcp", addresses)):
            engine.connect(some[0]).wait(20)
            before = held()
            peers = [engine.connect(one).wait(20) for one in some[1:]]
            after = held()
            out[f"KB, a peer, {kind}"] = (after[0] - before[0]) / PEERS
            out[f"descriptors, a peer, {kind}"] = (after[1] - before[1]) / PEERS
            for peer in (*peers, engine.connect(some[0]).wait(20)):
                peer.close()
    return out


PARTS: dict[str, Callable[[], dict[str, float]]] = {
    "near": near,
    "imports": imports,
    "torch": partial(of_ranks, "torch"),
    "hosts": partial(of_ranks, "hosts"),
    "footprints": footprints,
}


def compared(part: str, trees: list[str], rounds: int) -> list[float]:
    """Print what two trees took, in turn; return the ratios of the least."""
    found: list[list[dict[str, float]]] = [[], []]
    for number in range(rounds):
        for side in (0, 1) if number % 2 else (1, 0):
            run = subprocess.run(
                [sys.executable, __file__, "--measure", part],
                env={**os.environ, "PYTHONPATH": f"{trees[side]}/src"},
                capture_output=True, text=True, timeout=300, check=True,
            )  # fmt: skip
            (line,) = (x for x in run.stdout.splitlines() if x.startswith("JSON"))
            found[side].append(json.loads(line[4:]))
    ratios = []
    scale = 1.0 if part == "footprints" else 1e6
    for name in found[0][0]:
        before, after = ([run[name] * scale for run in side] for side in found)
        ratios.append(min(after) / max(min(before), 1e-9))
        middle = statistics.median(after) / max(statistics.median(before), 1e-9)
        print(
            f"{name:34} {min(before):11.2f} {min(after):11.2f}"
            f" {ratios[-1]:5.2f} {middle:5.2f}",
            flush=True,
        )
    return [] if part == "footprints" else ratios


def main() -> None:
    """Compare two trees."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trees", nargs="*")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--parts", default=",".join(PARTS))
    for hidden in ("measure", "child", "torch", "hosts"):
        parser.add_argument(f"--{hidden}", nargs="+", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        return child(given.child)
    if given.torch:
        return torch_rank(int(given.torch[0]), given.torch[1])
    if given.hosts:
        return far_rank(int(given.hosts[0]), *given.hosts[1:])
    if given.measure:
        return print("JSON" + json.dumps(PARTS[given.measure[0]]()))
    ratios = []
    for part in given.parts.split(","):
        ratios += compared(part, given.trees, given.rounds)
    if ratios:
        print("geomean", math.exp(sum(map(math.log, ratios)) / len(ratios)))
    return None


if __name__ == "__main__":
    main()
