"""Messages and copies across, beside staged ones: two ranks, by size and by place.

    python benchmarks/across_cpu.py [--turns 11]

Loops from a barrier to the one after them, the ways in turns, medians in microseconds;
every result is compared. First by where arrays lie in their pages, then what all
collectives that only copy take.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import stretto

WHOLE = "tile_bytes=1073741824"
HALVES = f"pull bulk across given:push {WHOLE}"
TAKEN = f"pull bulk across {WHOLE}"
MESSAGE = {"staged": "permute/direct push bulk staged tile_bytes=131072",
           "halves": f"permute/halves {HALVES}"}  # fmt: skip
PLACES = ((0, 0), (0, 16), (16, 0), (0, 64), (64, 16))
SIZES = (128 << 10, 1 << 20, 4 << 20)
COLLECTIVES = {
    "all_gather": ("all_gather/one_shot pull bulk staged", "all_gather/one_shot"),
    "all_to_all": ("all_to_all/one_shot pull bulk staged", "all_to_all/one_shot"),
    "gather": ("gather/flat pull bulk staged tile_bytes=65536", "gather/flat"),
    "scatter": ("scatter/flat pull bulk staged tile_bytes=65536", "scatter/flat"),
    "broadcast": ("broadcast/flat pull bulk staged", "broadcast/flat"),
    "permute": (MESSAGE["staged"], "permute/direct"),
}


def timed(comm: Any, ways: dict[str, Callable[[], Any]], many: int, turns: int) -> Any:
    """Return the median of each way, all of them in turns."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(turns):
        for name, call in ways.items():
            call()
            comm.barrier()
            begun = time.perf_counter()
            for _ in range(many):
                call()
            comm.barrier()
            found[name].append((time.perf_counter() - begun) / many * 1e6)
    return {name: round(statistics.median(us), 1) for name, us in found.items()}


def at(place: int, nbytes: int) -> Any:
    """Return bytes that begin at a place of a page."""
    room = np.empty(nbytes + 8192, np.uint8)
    start = (place - room.ctypes.data) % 4096
    return room[start : start + nbytes]


def messages(comm: Any, turns: int) -> dict[str, Any]:
    """Time one message, by where its arrays lie."""
    rows = {}
    for nbytes in SIZES:
        for source, target in PLACES:
            x, out = at(source, nbytes), at(target, nbytes)
            x[:] = np.arange(nbytes) % 251

            def sent(pin: str, x: Any = x, out: Any = out) -> None:
                if comm.rank == 0:
                    comm.send(x, 1, algorithm=pin)
                else:
                    comm.recv(out, 0, algorithm=pin)

            ways = {name: (lambda p=pin: sent(p)) for name, pin in MESSAGE.items()}
            many = max(4, (2 << 20) // nbytes)
            rows[f"{nbytes >> 10} KB {source} {target}"] = timed(
                comm, ways, many, turns
            )
            assert comm.rank == 0 or np.array_equal(x, out)
    return rows


def collectives(comm: Any, turns: int) -> dict[str, Any]:
    """Time collectives that only copy, staged and across."""
    rows = {}
    for name, (staged, across) in COLLECTIVES.items():
        for nbytes in (64 << 10, *SIZES[1:]):
            pins = {"staged": staged, "across": f"{across} {TAKEN}"}
            ways, outs = {}, {}
            for way, pin in pins.items():
                ways[way], outs[way] = called(comm, name, nbytes, pin)
            many = max(4, (1 << 20) // nbytes)
            rows[f"{name} {nbytes >> 10} KB"] = timed(comm, ways, many, turns)
            if outs["staged"] is not None:
                assert np.array_equal(outs["staged"], outs["across"]), name
    return rows


def called(comm: Any, name: str, nbytes: int, pin: str) -> Any:
    """Return a call of a collective on a vector of so many bytes, and its output."""
    n, rank = comm.num_ranks, comm.rank
    part = nbytes // n
    mine = part if name in ("all_gather", "gather") else nbytes
    x = np.random.default_rng(rank).integers(0, 9, mine).astype(np.uint8)
    out = np.zeros(part if name == "scatter" else nbytes, np.uint8)
    more: dict[str, Any] = {"algorithm": pin}
    if name == "permute":
        more["pairs"] = tuple((q, (q + 1) % n) for q in range(n))
    given = x if rank == 0 or name not in ("scatter", "broadcast") else None
    taken = out if rank == 0 or name != "gather" else None
    return lambda: getattr(comm, name)(given, out=taken, **more), taken


def work(comm: Any, turns: int) -> dict[str, Any]:
    """Measure on one rank."""
    return {**messages(comm, turns), **collectives(comm, turns)}


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=11)
    args = parser.parse_args()
    for case, row in stretto.spawn(work, args.turns, num_ranks=2)[0].items():
        print(f"{case:24}", "  ".join(f"{way} {us:8}" for way, us in row.items()))


if __name__ == "__main__":
    main()
