"""What a version takes of which few elements are new: 64 MB of them, of 2 bytes each.

    python benchmarks/weights_changes.py [--shares 0.001 0.01 ...] [--out FILE]

A trainer and a replica on two hosts (namespaces), a wire of 1 Gbit/s between them. In
each version a share of all elements is new, at random. The first is read whole. What is
there at the end is compared by a sum of its own. Needs root, `ip` and `tc`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from weights_cpu import SECRET, be, hosts, tensors

SHARES = (0.001, 0.01, 0.02, 0.14, 1.0)
VERSIONS = 9


def halves(value: float = 0.0) -> dict[str, Any]:
    """Return 64 MB of elements of 2 bytes."""
    return {n: one.view(np.uint16) for n, one in tensors(value).items()}


def said(weights: Any) -> int:
    """Return what tells weights from others."""
    found = 0
    for name in sorted(weights):
        found = zlib.crc32(weights[name].view(np.uint8), found)
    return found


def be_trainer(address: str, share: str) -> None:
    """Push versions, each when the replica has the one before."""
    from stretto import weights
    from stretto.transfer import Engine

    ours, chance, rows = halves(1.0), np.random.default_rng(7), []
    with (
        Engine("trainer", listen=f"{address}:7001", secret=SECRET) as engine,
        weights.publish(engine, "p", ours, patience=60) as source,
    ):
        print("ready", flush=True)
        sys.stdin.readline()
        for version in range(1, VERSIONS + 1):
            for one in ours.values():
                one[chance.random(one.shape) < float(share)] += version
            begun = time.perf_counter()
            push = source.push(version)
            pushed = time.perf_counter() - begun
            push.wait(120)
            rows.append((time.perf_counter() - begun, pushed, push.delta))
        print(json.dumps({"rows": rows, "said": said(ours)}), flush=True)
        sys.stdin.readline()


def be_replica(address: str, trainer: str) -> None:
    """Follow, and say what is here at the end."""
    from stretto import weights
    from stretto.transfer import Engine

    with Engine(f"r-{address}", listen=f"{address}:7001", secret=SECRET) as engine:
        engine.connect(f"{trainer}:7001").wait(30)
        with weights.subscribe(engine, "p", into=halves(), patience=60) as policy:
            print("ready", flush=True)
            sys.stdin.readline()
            with policy.step():
                print(said(policy.tensors), flush=True)


def measure(share: float) -> dict[str, Any]:
    """Return what versions take of which a share is new."""
    with hosts(2) as ((here, trainer), (there, replica)):
        source = be(here, "trainer", trainer, str(share), file=__file__)
        source.stdout.readline()
        policy = be(there, "replica", replica, trainer, file=__file__)
        policy.stdout.readline()
        ends = []
        for one in (source, policy):
            one.stdin.write("go\n")
            one.stdin.flush()
            ends.append(json.loads(one.stdout.readline()))
        found = ends[0]
        assert found["said"] == ends[1], "the replica has other weights"
        for one in (source, policy):
            one.kill()
            one.wait(10)
    took = [row[0] for row in found["rows"]]
    pushed = [row[1] for row in found["rows"]]
    return {
        "share": share, "whole_s": round(took[0], 4),
        "median_s": round(statistics.median(took[1:]), 4),
        "least_s": round(min(took[1:]), 4),
        "push_s": round(statistics.median(pushed[1:]), 4),
        "said": found["rows"][-1][2],
    }  # fmt: skip


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shares", nargs="+", type=float, default=list(SHARES))
    parser.add_argument("--out", default="")
    parser.add_argument("--be", nargs="+", help="a process of the measurement")
    args = parser.parse_args()
    if args.be:
        globals()[f"be_{args.be[0]}"](*args.be[1:])
        return
    from stretto.bench.machine import commit

    told: dict[str, Any] = {"commit": commit(), "load": os.getloadavg(), "rows": []}
    for share in args.shares:
        told["rows"].append(measure(share))
        print(told["rows"][-1], flush=True)
    if args.out:
        Path(args.out).write_text(json.dumps(told, indent=1))


if __name__ == "__main__":
    main()
