"""Collectives and tensors of Ray's actors: on stretto, and on what Ray has itself.

    python benchmarks/ray_peers.py [--rounds 5] [--out FILE]

Two actors on this host. Calls: loops, from the first actor in to the last one out, by
the clock of the host, medians of rounds in turn; sums are compared. Tensors: from the
call of who makes one until another actor has read it and returned its sum, medians.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from statistics import median
from typing import Any

import numpy as np
import ray
import torch
from ray.experimental.collective import create_collective_group as meet
from ray.util import collective

import stretto.ray
from stretto.bench.machine import commit

SIZES = {8: 400, 1 << 12: 400, 1 << 16: 200, 1 << 20: 60, 1 << 24: 8}
BACKENDS = ("STRETTO", "GLOO")
TRANSPORTS = ("STRETTO", "NIXL", "GLOO", "object store")
LARGE = (1 << 10, 1 << 20, 1 << 26)


def holder(transport: str) -> Any:
    """Return a class of actors whose tensors go by a transport."""
    by = {} if transport == "object store" else {"tensor_transport": transport}

    @ray.remote(num_cpus=1, enable_tensor_transport=bool(by))
    class Holder:
        @ray.method(**by)
        def make(self, nbytes: int) -> torch.Tensor:
            return torch.arange(nbytes // 4, dtype=torch.int32)

        def read(self, x: torch.Tensor) -> int:
            return int(x[-1])

    return Holder


@ray.remote(num_cpus=1)
class Caller:
    """A rank of a group."""

    def loop(self, group: str, nbytes: int, calls: int) -> tuple[float, float, bool]:
        """Sum so often; return when that began and ended, and whether it was right."""
        x = torch.ones(nbytes // 4)
        collective.allreduce(x, group)
        right = bool((x == 2).all())
        x.zero_()
        collective.barrier(group)
        begun = time.monotonic()
        for _ in range(calls):
            collective.allreduce(x, group)
        return begun, time.monotonic(), right


def summed(rounds: int) -> dict[str, float]:
    """Return microseconds of a call, by backend and bytes."""
    groups = {}
    for backend in BACKENDS:
        actors = [Caller.remote() for _ in range(2)]
        collective.create_collective_group(
            actors, 2, [0, 1], backend=backend, group_name=backend
        )
        groups[backend] = actors
    found: dict[str, list[float]] = {}
    for _ in range(rounds):
        for nbytes, calls in SIZES.items():
            for backend, actors in groups.items():
                said = ray.get([a.loop.remote(backend, nbytes, calls) for a in actors])
                assert all(right for *_, right in said), (backend, nbytes)
                span = max(e for _, e, _ in said) - min(b for b, *_ in said)
                found.setdefault(f"{backend} {nbytes}", []).append(1e6 * span / calls)
    return {name: median(us) for name, us in found.items()}


def moved(rounds: int) -> dict[str, Any]:
    """Return milliseconds of a tensor's way, by transport and bytes; or why not."""
    found: dict[str, list[float]] = {}
    pairs, absent = {}, dict[str, str]()
    for transport in TRANSPORTS:
        pairs[transport] = [holder(transport).remote() for _ in range(2)]
        if transport == "GLOO":
            meet(pairs[transport], backend="torch_gloo")
        try:
            pairs[transport][0].make.remote(4)
        except ValueError as e:
            absent[transport] = str(e)
            del pairs[transport]
    for nth in range(3 * rounds):
        for nbytes in LARGE:
            for transport, (one, other) in pairs.items():
                begun = time.monotonic()
                got = ray.get(other.read.remote(one.make.remote(nbytes)))
                ms = 1e3 * (time.monotonic() - begun)
                assert got == nbytes // 4 - 1, (transport, nbytes, got)
                if nth:
                    found.setdefault(f"{transport} {nbytes}", []).append(ms)
    return {**{name: median(ms) for name, ms in found.items()}, **absent}


def main() -> None:
    """Measure both, and say it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", default="")
    args = parser.parse_args()
    hook = {"worker_process_setup_hook": "stretto.ray.enable"}
    ray.init(num_cpus=12, runtime_env=hook, include_dashboard=False)
    stretto.ray.enable()
    found = {
        "command": f"python benchmarks/ray_peers.py --rounds {args.rounds}",
        "commit": commit(), "cores": os.cpu_count(), "ray": ray.__version__,
        "numpy": np.__version__, "all_reduce, us": summed(args.rounds),
        "tensors, ms": moved(args.rounds),
    }  # fmt: skip
    text = json.dumps(found, indent=1)
    print(text)
    if args.out:
        with open(args.out, "w", encoding="utf-8") as file:  # noqa: PTH123
            file.write(text + "\n")


if __name__ == "__main__":
    main()
