"""Sums with a byte an element on the wire, beside sums as they are: two ranks.

    python benchmarks/quantised_cpu.py [--turns 9]

Float32, by size; loops of five from a barrier to the one after them, the ways in turns,
medians in microseconds; every result within its bound of the exact one. First on one
host, then between two that are one machine: by TCP over its loopback.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import secrets
import socket
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "benchmarks")]

from across_cpu import timed  # noqa: E402

import stretto  # noqa: E402

WAYS: dict[str, dict[str, str]] = {
    "as it is": {}, "fp8_128": {"wire": "fp8_128"}, "int8_128": {"wire": "int8_128"},
}  # fmt: skip
CLOSE = {"as it is": 1e-5, "fp8_128": 0.5, "int8_128": 0.1}
"""By how much a sum of two normal numbers may be off."""


def work(comm: Any, turns: int) -> dict[str, Any]:
    """Measure on one rank."""
    rows = {}
    for nbytes in (4 << 10, 64 << 10, 1 << 20, 4 << 20, 16 << 20):
        xs = [
            np.random.default_rng(q).standard_normal(nbytes // 4).astype(np.float32)
            for q in range(comm.num_ranks)
        ]
        x, out = xs[comm.rank], np.empty_like(xs[0])
        calls = {
            name: (lambda h=how, x=x, out=out: comm.all_reduce(x, out=out, **h))
            for name, how in WAYS.items()
        }
        rows[f"{nbytes >> 10} KB"] = timed(comm, calls, 5, turns)
        for name, call in calls.items():
            call()
            assert abs(out - sum(xs)).max() < CLOSE[name], (nbytes, name)
    return rows


def rank_of_a_host(rank: int, address: str, turns: int, results: Any) -> None:
    """Be a rank on a host of its own."""
    os.environ["STRETTO_HOST"] = f"host{rank}"
    with stretto.connect(rank, 2, address) as comm:
        assert comm.hosts == (0, 1)
        results.put((rank, work(comm, turns)))


def between_hosts(turns: int) -> dict[str, Any]:
    """Measure between two hosts by TCP."""
    with tempfile.NamedTemporaryFile() as secret, socket.socket() as free:
        secret.write(secrets.token_bytes(32))
        secret.flush()
        os.environ["STRETTO_SECRET_FILE"] = secret.name
        free.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
        free.close()
        context = multiprocessing.get_context("spawn")
        results = context.Queue()
        ranks = [
            context.Process(target=rank_of_a_host, args=(r, address, turns, results))
            for r in range(2)
        ]
        for one in ranks:
            one.start()
        found = dict(results.get(timeout=300) for _ in ranks)
        for one in ranks:
            one.join()
    return dict(found[0])


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=9)
    args = parser.parse_args()
    one_host = stretto.spawn(work, args.turns, num_ranks=2)[0]
    for title, rows in (("one host", one_host), ("two", between_hosts(args.turns))):
        print(title)
        for size, row in rows.items():
            print(f"  {size:10}", "  ".join(f"{way} {us:9}" for way, us in row.items()))


if __name__ == "__main__":
    main()
