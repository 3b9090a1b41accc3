"""Compile what will be measured in parallel, before the GPUs are touched."""

from __future__ import annotations

import argparse
import os
import time
from concurrent.futures import ProcessPoolExecutor

from gpu_candidates import shapes


def _compile(job: tuple[str, int, int]) -> str:
    """Compile one variant of one rank into the disk cache."""
    variant, rank, ranks = job
    try:
        from stretto import algorithms
        from stretto.collectives import Operator
        from stretto.executors.cuda.compile import compile_kernel
        from stretto.executors.cuda.generate import generate
        from stretto.executors.cuda.halves import hands_round_on_engine, in_halves
        from stretto.lower import lower
        from stretto.plan import Schedule
        from stretto.verify import verify

        name, schedule = variant.split("|")
        parsed = Schedule.parse(schedule)
        if parsed.protocol != "engine":
            plan = lower(verify(algorithms.get(name).build(ranks)), parsed)
            if hands_round_on_engine(plan):
                plan, _ = in_halves(plan)
            kernel = generate(plan, rank=rank, dtype="bfloat16", op=Operator.SUM)
            compile_kernel(kernel, arch=(9, 0))
    except Exception as e:
        return f"{variant}: {type(e).__name__}: {e}"
    return ""


def warm(args: argparse.Namespace, sizes: list[int]) -> None:
    """Compile what will be measured."""
    variants = {
        f"{name}|{schedule}"
        for collective in args.collectives.split(",")
        for nbytes in sizes
        for name, schedule in shapes(args.shapes, collective, nbytes, args.ranks)
    }
    jobs = [(v, r, args.ranks) for v in sorted(variants) for r in range(args.ranks)]
    began = time.monotonic()
    with ProcessPoolExecutor(max(1, (os.cpu_count() or 2) - 2)) as pool:
        wrong = [w for w in pool.map(_compile, jobs, chunksize=4) if w]
    print(f"{len(jobs)} kernels of {len(variants)} variants compiled in", end=" ")
    print(f"{time.monotonic() - began:.1f} s; {len(wrong)} failed", flush=True)
    for line in sorted(set(wrong))[:8]:
        print("  ", line[:300], flush=True)
