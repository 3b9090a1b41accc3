"""What a switch of weights takes on CPUs: each figure of the goals, and yes or no.

    python benchmarks/weights_cpu.py [--stages switch late plan wire chain] [--out FILE]

    switch  64 MB in two processes of this host, with a second copy and with one
    late    a process that has its engine joins a replica that serves
    plan    1,000 tensors, tensor parallel over 8 ranks, into 16 ranks of FSDP
    wire    64 MB between two namespaces at 1 Gbit/s, beside a plain TCP connection
    chain   the same to four replicas, each on a host of its own, and to one

`wire` and `chain` need root, `ip` and `tc`.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "src"))
SECRET = b"w" * 32
STAGES = ("switch", "late", "plan", "wire", "chain")
TENSORS, NBYTES, GBIT = 64, 64 << 20, 1e9 / 8


def tensors(value: float = 0.0) -> dict[str, Any]:
    """Return 64 MB of weights."""
    rows = NBYTES // TENSORS // 4 // 256
    return {f"w{i}": np.full((rows, 256), value, np.float32) for i in range(TENSORS)}


def switch() -> Iterator[dict[str, Any]]:
    """Yield what a switch takes beyond the copies of it all."""
    from stretto.bench.weights import measure

    for row in [*measure(NBYTES), *measure(NBYTES)]:
        beyond = row["switched_ms"] - 2 * row["plain_copy_ms"]
        yield {
            **row, "beyond_ms": round(beyond, 2), "goal": "8 ms, gap 1 ms",
            "reached": beyond <= 8 and (row["copies"] == 1 or row["gap_ms"] <= 1),
        }  # fmt: skip


def late() -> Iterator[dict[str, Any]]:
    """Yield how long it takes to join: by subscribing, and from the start."""
    from stretto import weights
    from stretto.transfer import Engine

    name = f"late-{os.getpid()}"
    with Engine(name) as engine, weights.publish(engine, "p", tensors(1.0)) as source:
        source.push()
        for _ in range(3):
            begun = time.perf_counter()
            words = [sys.executable, __file__, "--be", "late", name]
            said = json.loads(
                subprocess.run(words, capture_output=True, check=True).stdout
            )
            said["process_s"] = round(time.perf_counter() - begun, 3)
            yield {**said, "goal": "1 s", "reached": said["serves_s"] <= 1}


def be_late(name: str) -> None:
    """Join, and step."""
    from stretto import weights
    from stretto.transfer import Engine

    into = tensors()
    with Engine(f"{name}-joins") as engine:
        begun = time.perf_counter()
        engine.connect(name).wait(30)
        with weights.subscribe(engine, "p", into=into) as policy:
            policy.wait(timeout=30)
            with policy.step():
                assert all((one == 1).all() for one in policy.tensors.values())
                took = time.perf_counter() - begun
    print(json.dumps({"serves_s": round(took, 3)}))


def plan() -> Iterator[dict[str, Any]]:
    """Yield what planning and its proof take: of one rank, and of all."""
    from stretto.weights.cover import There, Wanted, cover
    from stretto.weights.manifest import Held, grouped
    from stretto.weights.names import Part

    shapes = {}
    for i in range(125):
        for n, (axis, shape) in enumerate(
            [(0, (512, 512)), (0, (256, 512)), (0, (256, 512)), (1, (512, 512)),
             (0, (1536, 512)), (0, (1536, 512)), (1, (512, 1536)), (None, (512,))]
        ):  # fmt: skip
            shapes[f"layers.{i}.{n}"] = axis, shape

    def cut(size: int, rank: int, of: int) -> tuple[int, int]:
        return size * rank // of, size * (rank + 1) // of

    def tp(rank: int) -> Any:
        parts = []
        for name, (axis, shape) in shapes.items():
            box = [(0, n) for n in shape]
            if axis is not None:
                box[axis] = cut(shape[axis], rank, 8)
            parts.append(Held(name=name, shape=shape, box=tuple(box), dtype="bfloat16"))
        return grouped(parts)[0]

    def fsdp(rank: int) -> list[Any]:
        found = []
        for name, (_, shape) in shapes.items():
            rows = cut(shape[0], rank, 16)
            box = (rows, *((0, n) for n in shape[1:]))
            extent, spec = (rows[1] - rows[0], *shape[1:]), Part(name, box=box)
            one = Wanted(name=name, shape=extent, dtype="bfloat16", spec=spec)
            found.append(one)
        return found

    manifests = [tp(rank) for rank in range(8)]
    took = []
    for rank in range(16):
        begun = time.perf_counter()
        reads = cover(fsdp(rank), There(manifests), turn=rank)
        took.append(time.perf_counter() - begun)
    yield {
        "tensors": len(shapes), "reads_of_a_rank": len(reads),
        "first_s": round(took[0], 3), "median_s": round(statistics.median(took), 3),
        "goal": "0.5 s", "reached": took[0] <= 0.5,
    }  # fmt: skip


def _sh(*words: str) -> None:
    subprocess.run(shlex.split(" ".join(words)), check=True, capture_output=True)


@contextmanager
def hosts(count: int) -> Iterator[list[tuple[str, str]]]:
    """Yield namespaces about a router, each with a wire of 1 Gbit/s, and addresses."""
    tag, net = f"w{os.getpid() % 10000}", f"10.{100 + os.getpid() % 100}"
    router, made = f"{tag}r", []
    limit = "root tbf rate 1gbit burst 128kb latency 20ms"
    with ExitStack() as stack:

        def space(name: str) -> None:
            _sh("ip netns add", name)
            stack.callback(_sh, "ip netns del", name)

        space(router)
        _sh(f"ip netns exec {router} sysctl -w net.ipv4.ip_forward=1")
        for i in range(count):
            here, near, far = f"{tag}{i}", f"{tag}a{i}", f"{tag}b{i}"
            space(here)
            _sh(f"ip link add {near} type veth peer name {far}")
            _sh(f"ip link set {near} netns {here}")
            _sh(f"ip link set {far} netns {router}")
            for where, end, last in ((here, near, 2), (router, far, 1)):
                _sh(f"ip -n {where} addr add {net}.{i}.{last}/24 dev {end}")
                _sh(f"ip -n {where} link set {end} up")
                _sh(f"ip netns exec {where} tc qdisc add dev {end} {limit}")
            _sh(f"ip -n {here} link set lo up")
            _sh(f"ip -n {here} route add default via {net}.{i}.1")
            made.append((here, f"{net}.{i}.2"))
        yield made


def _plain(spaces: Sequence[tuple[str, str]]) -> float:
    """Return seconds that a plain TCP connection takes for the same bytes."""
    there = be(spaces[1][0], "sink", spaces[1][1])
    there.stdout.readline()
    here = be(spaces[0][0], "pour", spaces[1][1])
    took = float(here.stdout.readline())
    for one in (here, there):
        one.wait(20)
    return took


def be_sink(address: str) -> None:
    """Take bytes."""
    with socket.create_server((address, 7000)) as server:
        print("ready", flush=True)
        other, _ = server.accept()
        left, room = NBYTES, bytearray(1 << 20)
        while left:
            left -= other.recv_into(room)
        other.sendall(b"x")


def be_pour(address: str) -> None:
    """Send bytes, and say how long it took until all had come."""
    with socket.create_connection((address, 7000)) as sock:
        data = bytes(1 << 20)
        begun = time.perf_counter()
        for _ in range(NBYTES >> 20):
            sock.sendall(data)
        sock.recv(1)
        print(time.perf_counter() - begun, flush=True)


def be(space: str, what: str, *words: str, file: str = __file__) -> Any:
    """Start a process of a measurement in a namespace: a host of its own."""
    command = [
        "ip",
        "netns",
        "exec",
        space,
        "unshare",
        "--ipc",
        "--uts",
        sys.executable,
    ]
    command += [file, "--be", what, *words]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def be_trainer(address: str, count: str, fan: str) -> None:
    """Push a few versions, each when all replicas have the one before."""
    from stretto import weights
    from stretto.transfer import Engine

    with Engine("trainer", listen=f"{address}:7001", secret=SECRET) as engine:
        ours = tensors()
        with weights.publish(engine, "p", ours, fan=int(fan), patience=60) as source:
            print("ready", flush=True)
            sys.stdin.readline()
            took = []
            for version in range(1, 5):
                for one in ours.values():
                    one[...] = version
                begun = time.perf_counter()
                push = source.push(version)
                while len(push.replicas) < int(count):
                    time.sleep(0.001)
                push.wait(120)
                took.append(time.perf_counter() - begun)
            print(json.dumps(took), flush=True)
            sys.stdin.readline()


def be_replica(address: str, *others: str) -> None:
    """Follow, and say what was wrong."""
    from stretto import weights
    from stretto.transfer import Engine

    with Engine(f"r-{address}", listen=f"{address}:7001", secret=SECRET) as engine:
        for other in others:
            engine.connect(f"{other}:7001").wait(30)
        with weights.subscribe(engine, "p", into=tensors(), patience=60) as policy:
            print("ready", flush=True)
            sys.stdin.readline()
            with policy.step() as version:
                wrong = [n for n, one in policy.tensors.items()
                         if not (one == version.counter).all()]  # fmt: skip
            print(json.dumps({"version": version.counter, "wrong": wrong}), flush=True)


def _switched(spaces: Sequence[tuple[str, str]], fan: int) -> list[float]:
    """Return seconds from pushes until all replicas have switched."""
    ranks, known = [], [spaces[0][1]]
    trainer = be(spaces[0][0], "trainer", spaces[0][1], str(len(spaces) - 1), str(fan))
    trainer.stdout.readline()
    for space, address in spaces[1:]:
        ranks.append(be(space, "replica", address, *known))
        ranks[-1].stdout.readline()
        known.append(address)
    try:
        trainer.stdin.write("go\n")
        trainer.stdin.flush()
        found: list[float] = json.loads(trainer.stdout.readline())
        for one in ranks:
            one.stdin.write("end\n")
            one.stdin.flush()
            said = json.loads(one.stdout.readline())
            assert said == {"version": 4, "wrong": []}, said
        trainer.stdin.write("end\n")
        trainer.stdin.flush()
        return found[1:]
    finally:
        for one in (trainer, *ranks):
            one.kill()
            one.wait(10)


def wire() -> Iterator[dict[str, Any]]:
    """Yield how much of a wire a version takes."""
    with hosts(2) as spaces:
        plain = min(_plain(spaces) for _ in range(3))
        took = min(_switched(spaces, 0))
    share = plain / took
    yield {
        "plain_s": round(plain, 4), "switched_s": round(took, 4),
        "share_of_plain": round(share, 3),
        "share_of_gbit": round(NBYTES / took / GBIT, 3),
        "goal": "0.95", "reached": share >= 0.95,
    }  # fmt: skip


def chain() -> Iterator[dict[str, Any]]:
    """Yield what four replicas take, of what one takes."""
    with hosts(5) as spaces:
        one = min(_switched(spaces[:2], 1))
        four = min(_switched(spaces, 1))
        apart = min(_switched(spaces, 0))
    yield {
        "one_s": round(one, 3), "four_s": round(four, 3), "ratio": round(four / one, 3),
        "four_from_the_trainer_s": round(apart, 3),
        "goal": "1.15", "reached": four / one <= 1.15,
    }  # fmt: skip


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stages", nargs="+", default=list(STAGES), choices=STAGES)
    parser.add_argument("--out", default="")
    parser.add_argument("--be", nargs="+", help="a process of the measurement")
    args = parser.parse_args()
    if args.be:
        globals()[f"be_{args.be[0]}"](*args.be[1:])
        return
    from stretto.bench.machine import commit

    said: dict[str, Any] = {"commit": commit(), "load": os.getloadavg()}
    for stage in args.stages:
        said[stage] = []
        for row in globals()[stage]():
            said[stage].append(row)
            print(stage, row, flush=True)
    if args.out:
        Path(args.out).write_text(json.dumps(said, indent=1))


if __name__ == "__main__":
    main()
