"""The whole catalogue as cases for a GPU: each algorithm under each schedule.

Types and operators take turns. Kernels are compiled on all cores while others run.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stretto.compiler.lower import lower
from stretto.compiler.plan import Plan, Schedule
from stretto.compiler.verify import verify, verify_plan
from stretto.errors import CallError, ProgramError
from stretto.executors.cuda.codegen import abi, generate
from stretto.executors.cuda.codegen.compile import compile_kernel
from stretto.program import algorithms, collectives
from stretto.program.collectives import Operator
from stretto.program.ir import Program
from stretto.testing import draw, pairings

__all__ = ["COUNTS", "Case", "Compiling", "cases", "kernel_of", "parts", "wanted"]

SCHEDULES = (
    "push packets staged blocks=2 threads=128 tile_bytes=4096",
    "push bulk staged blocks=2 threads=128 tile_bytes=4096",
    "pull bulk staged blocks=3 threads=64 tile_bytes=4096",
    "push bulk zero_copy blocks=2 threads=128",
    "pull bulk zero_copy blocks=2 threads=256 tile_bytes=8192",
    "push packets staged blocks=1 threads=256",
)
COUNTS = (1, 7, 1000, 4099, 20011)
"""Elements of each part: fewer than a vector, odd, and several tiles."""
FLOAT8 = ("float8_e4m3fn", "float8_e5m2")
PAIRS = 1 << 16
"""Elements of two ranks that are all pairs of bytes: every conversion of a float8."""
IN_ONE = 4
"""The most ranks that are one launch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One kernel to run on several counts."""

    algorithm: str
    ranks: int
    schedule: str
    dtype: str
    op: str
    pairs: bool = False
    """Two ranks' inputs are all pairs of bytes, once, and not drawn."""

    def counts(self, asked: Sequence[int]) -> list[int]:
        """Return the counts to run on, of those that were asked for."""
        return [PAIRS] if self.pairs else list(asked)

    def inputs(
        self, rng: np.random.Generator, counts: Sequence[int], turn: int
    ) -> list[Any]:
        """Return every rank's input; pairs come in another order each turn."""
        if not self.pairs:
            return [draw(rng, c, self.dtype, Operator(self.op)) for c in counts]
        every = np.roll(np.arange(256, dtype=np.uint8), turn)
        return [np.repeat(every, 256), np.tile(every, 256)]

    def program(self) -> Program:
        """Return the program."""
        return algorithms.get(self.algorithm).build(self.ranks, **self.params())

    def params(self) -> dict[str, object]:
        """Return what the algorithm needs to be told."""
        if self.algorithm.startswith("permute/"):
            n = self.ranks
            return {"pairs": tuple((r, (r + 1) % n) for r in range(n))}
        return {}

    def plan(self) -> Plan:
        """Return the proved plan."""
        plan = lower(verify(self.program()), Schedule.parse(self.schedule))
        return verify_plan(plan).value

    def __str__(self) -> str:
        """Return the case in a line."""
        what = f"{self.dtype} {self.op}" + " all pairs" * self.pairs
        return f"{self.algorithm} n={self.ranks} {what} [{self.schedule}]"


def cases(sizes: Sequence[int] = (2, 3, 4, 8)) -> Iterator[Case]:
    """Yield every algorithm under every schedule, types and operators in turn."""
    turn = itertools.cycle(pairings())
    for schedule in SCHEDULES:
        for name in algorithms.names():
            reduces = collectives.get(algorithms.get(name).collective).reduces
            for ranks in sizes:
                if algorithms.get(name).refuses(ranks) is not None:
                    continue
                dtype, op = next(turn)
                if ranks == 4:
                    dtype, op = "bfloat16", Operator.SUM
                yield Case(
                    algorithm=name,
                    ranks=ranks,
                    schedule=schedule,
                    dtype=dtype,
                    op=op.value if reduces else "sum",
                )
    for dtype, op in itertools.product(FLOAT8, ("sum", "prod", "min", "max", "avg")):
        yield Case(
            algorithm="all_reduce/one_shot",
            ranks=2,
            schedule="push packets staged blocks=2 threads=256",
            dtype=dtype,
            op=op,
            pairs=True,
        )


def parts(case: Case) -> list[int | None]:
    """Return the ranks that have a kernel of their own; None: one runs all."""
    return [None] if case.ranks <= IN_ONE else list(range(case.ranks))


def kernel_of(case: Case, plan: Plan, rank: int | None) -> abi.Kernel:
    """Return the kernel that runs one rank, or all ranks in one launch."""
    return generate.kernel_of(
        verify_plan(plan), rank=rank, dtype=case.dtype, op=Operator(case.op)
    )


def prepare(case: Case, rank: int | None, arch: tuple[int, int]) -> str:
    """Compile into the disk cache; return why that cannot be, or nothing."""
    try:
        compile_kernel(kernel_of(case, case.plan(), rank), arch=arch)
    except (CallError, ProgramError) as e:
        return f"refused: {e}"
    except Exception as e:
        return f"error: {type(e).__name__}: {e}"
    return ""


class Compiling:
    """Cases being compiled on all cores but one; `ready` says which can run."""

    def __init__(self, chosen: list[Case], arch: tuple[int, int], ready: Path) -> None:
        """Begin; plain cases come first."""
        self.said = ["left out: not compiled in time"] * len(chosen)
        """What came of each. Nothing: it can run."""
        self.seconds = 0.0
        """How long it took, or has lasted."""
        self._ready, self._began = ready, time.monotonic()
        self._ended = threading.Event()
        ready.write_text("")
        jobs = [(i, rank) for i, case in enumerate(chosen) for rank in parts(case)]
        jobs.sort(key=lambda job: chosen[job[0]].ranks > IN_ONE)
        self._left = [len(parts(case)) for case in chosen]
        self._pool = ProcessPoolExecutor(max(1, (os.cpu_count() or 2) - 1))
        self._started = {
            self._pool.submit(prepare, chosen[i], rank, arch): i for i, rank in jobs
        }
        threading.Thread(target=self._follow, daemon=True).start()

    def _follow(self) -> None:
        """Note every case whose last kernel is there, then that all are."""
        with self._ready.open("a") as out:
            for future in as_completed(self._started):
                if self._ended.is_set():
                    return
                index = self._started[future]
                text = f"{future.exception()}" if future.exception() else ""
                text = (text and f"error: {text}") or future.result()
                self._left[index] -= 1
                self.seconds = time.monotonic() - self._began
                if text or not self._left[index]:
                    self.said[index] = text
                if self.said[index] == "":
                    print(index, file=out, flush=True)
            print("null", file=out, flush=True)

    def end(self) -> None:
        """End the compilers, whatever they do."""
        self._ended.set()
        running = list((self._pool._processes or {}).values())
        self._pool.shutdown(wait=False, cancel_futures=True)
        for process in running:
            process.kill()


def wanted(case: Case, only: str) -> bool:
    """Return whether a case has all words of one of the alternatives."""
    text = str(case)
    return any(all(w in text for w in one.split()) for one in only.split("|"))
