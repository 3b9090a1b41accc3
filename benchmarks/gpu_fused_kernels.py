"""The kernels that gpu_fused.py measures: which schedules, and compiling them early.

Nothing here needs torch or a GPU, so every core can begin at once; kernels go to the
disk cache, where the ranks find them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from typing import Any

from stretto.compiler.lower import lower
from stretto.compiler.plan import Schedule
from stretto.compiler.verify import verify, verify_plan
from stretto.executors import Call
from stretto.executors.cuda.codegen import rowwise
from stretto.executors.cuda.codegen.compile import compile_kernel
from stretto.executors.cuda.codegen.generate import kernel_of
from stretto.program import algorithms
from stretto.program import epilogues as ep
from stretto.program.epilogues import Named, ValueForm, resolve
from stretto.runtime.choice import Choice, Profile
from stretto.runtime.choice.fused import fused_choice

__all__ = ["HIDDEN", "Kernels", "call_of", "candidates", "chosen", "compile_one", "how"]

HIDDEN = 8192
CELLS = HIDDEN // 8
"""Of 16 bytes, in a row."""
MOST_BLOCKS = 128


@contextmanager
def how(variant: str) -> Iterator[tuple[str, str]]:
    """Give the algorithm and the schedule; kernels are generated as the rest says."""
    name, schedule, *rest = variant.split("|")
    before = rowwise.MAX_CLUSTER
    for word, most in (("memory", 1), ("sixteen", 16)):
        rowwise.MAX_CLUSTER = most if word in rest else rowwise.MAX_CLUSTER
    try:
        yield name, schedule
    finally:
        rowwise.MAX_CLUSTER = before


def call_of(rows: int, hidden: int = HIDDEN) -> Call:
    """Return the kind of call that is measured."""

    @ep.epilogue
    def add_rms_norm(y: Any, residual: Any, weight: Any, eps: Any) -> Any:
        s = y + residual
        scale = ep.rsqrt(ep.row_mean(s * s) + eps)
        return {"out": s * scale * weight, "residual": s}

    named = {
        "residual": Named("residual", "bfloat16", ValueForm.ELEMENT),
        "weight": Named("weight", "bfloat16", ValueForm.ROW),
        "eps": Named("eps", "", ValueForm.SCALAR),
    }
    spec = resolve(add_rms_norm.graph, named, dtype="bfloat16", row=hidden)
    return Call(dtype="bfloat16", counts=(rows * hidden,), epilogue=spec)


def chosen(rows: int, ranks: int, hidden: int = HIDDEN) -> str:
    """Return what a communicator runs when nobody says how."""
    call = call_of(rows, hidden)
    plain = Choice(algorithms.get("all_reduce/one_shot"), Schedule())
    rule = Profile.shipped("cuda").rows_of(ranks)
    assert rule is not None, "what is shipped is for all numbers of ranks"
    choice = fused_choice(
        plain,
        rule,
        collective="all_reduce",
        num_ranks=ranks,
        nbytes=rows * hidden * 2,
        epilogue=call.epilogue,
        pitched=False,
    )
    words = f"blocks={choice.schedule.blocks} threads={choice.schedule.threads}"
    return f"{choice.algorithm.name}|push packets staged {words}"


def candidates(rows: int, ranks: int) -> list[str]:
    """Return the schedules to try for a number of rows, the runtime's own first.

    One shot: a thread for each cell of each row, the row on 2 to 8 blocks. Two shots:
    the same for a rank's part of the rows, and threads for all parts at once, or for
    half of them, or each with a cell of every part.
    """
    found = [chosen(rows, ranks)]

    def add(name: str, blocks: int, threads: int, *more: str) -> None:
        if blocks <= MOST_BLOCKS and 32 <= threads <= 512:
            words = f"push packets staged blocks={blocks} threads={threads}"
            found.append("|".join([f"all_reduce/{name}", words, *more]))

    most = min(8, MOST_BLOCKS // rows)
    for share in (most, most // 2):
        if share > 1:
            add("one_shot", rows * share, CELLS // share)
    if rows <= 4:
        add("one_shot", rows * 16, CELLS // 16, "sixteen")
    if rows == 1:
        add("one_shot", 32, 32, "memory")
    if rows >= 2 * ranks:
        part = rows // ranks
        most = min(8, MOST_BLOCKS // part)
        for share in (most, most // 2):
            for wide in (ranks, ranks // 2, 1):
                add("two_shot", part * share, wide * CELLS // share)
        if part <= 4:
            add("two_shot", part * 16, ranks * CELLS // 16, "sixteen")
        if part == 8:
            add("two_shot", part * most, ranks * CELLS // most, "memory")
    return list(dict.fromkeys(found))


def compile_one(rows: int, ranks: int, variant: str, rank: int) -> str:
    """Compile a kernel into the disk cache; return what went wrong, or nothing."""
    try:
        with how(variant) as (name, schedule):
            program = verify(algorithms.get(name).build(ranks))
            plan = verify_plan(lower(program, Schedule.parse(schedule)))
            spec = call_of(rows).epilogue
            assert spec is not None, "the call has one"
            part = rows if "one_shot" in name else -(-rows // ranks)
            kernel = kernel_of(
                plan,
                rank=rank,
                dtype="bfloat16",
                epilogue=spec,
                share=rowwise.shared_by(spec, plan.value.schedule.blocks, part),
            )
            compile_kernel(kernel, arch=(9, 0))
    except Exception as e:
        return f"{rows} rows: {variant}: {type(e).__name__}: {e}"
    return ""


class Kernels:
    """The kernels of all rows, compiled on all cores in the order of measuring."""

    def __init__(self, order: tuple[int, ...], ranks: int) -> None:
        self._ranks = ranks
        self._pool = ProcessPoolExecutor(os.cpu_count() or 4)
        self._jobs: dict[tuple[int, str], list[Future[str]]] = {
            (rows, variant): [
                self._pool.submit(compile_one, rows, ranks, variant, rank)
                for rank in range(ranks)
            ]
            for rows in order
            for variant in candidates(rows, ranks)
        }

    def ready(self, seconds: float) -> str:
        """Wait for all, so long at most; say how many are there, and how many late."""
        began = time.monotonic()
        jobs = [job for several in self._jobs.values() for job in several]
        done, late = wait(jobs, timeout=max(0.0, seconds))
        wrong = sum(bool(job.result()) for job in done)
        taken = time.monotonic() - began
        return (
            f"kernels: {len(done) - wrong} compiled, {wrong} refused, {len(late)} not "
            f"yet (waited {taken:.1f} s)"
        )

    def of(self, rows: int) -> tuple[list[str], list[str]]:
        """Return the variants whose kernels are there, and what is with the others."""
        found, wrong = [], []
        for (of, variant), jobs in self._jobs.items():
            if of != rows:
                continue
            if not all(job.done() for job in jobs):
                wrong.append(f"{rows} rows: {variant}: was not compiled in time")
                continue
            said = [job.result() for job in jobs if job.result()]
            wrong += said[:1]
            found += [] if said else [variant]
        return found, wrong

    def chosen(self, rows: int) -> str:
        """Return what the runtime takes."""
        return chosen(rows, self._ranks)

    def stop(self) -> None:
        """Begin no other."""
        self._pool.shutdown(wait=False, cancel_futures=True)
