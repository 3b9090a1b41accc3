"""Search a cache policy for a trace, beside the policies of libcachesim.

    python benchmarks/search_cache.py TRACE [--evals 2000] [--sizes 0.1%,1%,10%]

TRACE: a file in libCacheSim's oracleGeneral format, such as its CloudPhysics sample.
Trained on the first half; misses of the second half and of the whole are printed. Where
libcachesim is not installed, that is said, and only our rows are there.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from stretto.search import evolve, problem
from stretto.search.problems._traces import load_trace

NAMES = ("FIFO", "LRU", "LFU", "Sieve", "ARC", "S3FIFO", "WTinyLFU", "LHD", "GDSF",
         "LIRS", "Cacheus", "TwoQ", "SLRU", "Clock", "LeCaR", "Hyperbolic")  # fmt: skip


def peers(path: str, capacity: int, half: int) -> dict[str, tuple[float, float]]:
    """Return misses of the second half, and of all, by each policy that is there."""
    try:
        import libcachesim as lcs
    except ImportError:
        print("libcachesim is not installed: no peers", file=sys.stderr)
        return {}
    trace = load_trace(Path(path))
    found = {}
    for name in NAMES:
        kind = getattr(lcs, name, None)
        if kind is None:
            print(f"libcachesim has no {name}", file=sys.stderr)
            continue
        cache, missed = kind(cache_size=capacity), [0, 0]
        request = lcs.Request()
        for i, (one, size) in enumerate(zip(trace.ids, trace.sizes, strict=True)):
            request.obj_id, request.obj_size, request.clock_time = (
                int(one),
                int(size),
                i,
            )
            missed[i >= half] += not cache.get(request)
        found[name] = missed[1] / (len(trace.ids) - half), sum(missed) / len(trace.ids)
    return found


def main() -> None:
    """Print a table for each size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace")
    parser.add_argument("--evals", type=int, default=2000)
    parser.add_argument("--sizes", default="0.1%,1%,10%")
    parser.add_argument("--seeds", type=int, default=2)
    given = parser.parse_args()
    for size in given.sizes.split(","):
        made = problem("cache", trace=given.trace, size=size)
        whole = load_trace(Path(given.trace))
        share = float(size.rstrip("%")) / (100 if size.endswith("%") else 1)
        capacity = max(1, int(whole.footprint * share))
        rows = peers(given.trace, capacity, len(whole.ids) // 2)
        for seed in range(1, given.seeds + 1):
            begun = time.perf_counter()
            found = evolve(made, evals=given.evals, seed=seed)
            spent = time.perf_counter() - begun
            rows[f"searched, seed {seed}"] = (
                found.held_out["second_half"], found.held_out["whole"],
            )  # fmt: skip
            said = found.text.replace("\n", "; ")
            print(
                f"{size} seed {seed}: {found.evals / spent:.0f} evaluations/s: {said}"
            )
        print(f"{size}: misses of the second half, of the whole")
        for name, (second, all_) in sorted(rows.items(), key=lambda row: row[1]):
            print(f"  {name:20} {second:.4f} {all_:.4f}")


if __name__ == "__main__":
    main()
