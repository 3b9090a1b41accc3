"""Calls of a communicator as data: what each is given, and the bits that are due.

`Case` is one call of one collective. `due` asks the reference interpreter for the
program that serves it, so results are compared bit for bit, whatever the type.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stretto.errors import StrettoError
from stretto.executors.cuda.codegen.compile import compile_kernel
from stretto.executors.cuda.codegen.generate import kernel_of
from stretto.executors.cuda.launching.copies import runs_on_engine
from stretto.program import algorithms, collectives
from stretto.program.collectives import Operator, Shape, storage
from stretto.runtime.choice.plans import frozen, proved_plan
from stretto.runtime.choice.question import STAGED, Choice, Question
from stretto.runtime.choice.selector import Selector
from stretto.testing import draw, input_counts, interpret, output_counts

__all__ = ["Case", "invoke", "tensor", "warm"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One call, the same on every rank."""

    collective: str
    num_ranks: int
    count: int
    dtype: str = "float32"
    op: str = "sum"
    memory: str = STAGED
    in_place: bool = True
    params: dict[str, Any] = field(default_factory=dict)

    @property
    def counts(self) -> tuple[int, ...]:
        """Return the elements of every part."""
        kind = collectives.get(self.collective)
        shape = Shape(num_ranks=self.num_ranks, params=self.params)
        return (self.count,) * kind.num_parts(shape)

    def choice(self, selector: Selector) -> Choice:
        """Return what serves the call."""
        item, n = storage(self.dtype).itemsize, self.num_ranks
        nbytes = sum(self.counts) * item
        if self.collective == "all_to_all":
            nbytes //= n
        elif self.collective == "permute":
            nbytes = self.count * item
        asked = Question(
            executor="cuda",
            collective=self.collective,
            num_ranks=n,
            nbytes=nbytes,
            memory=self.memory,
            in_place=self.in_place,
            params=frozen(self.params),
        )
        return selector.choose(asked)

    def given(self, program: Any, seed: int) -> list[Any]:
        """Return every rank's input."""
        op = Operator(self.op)
        return [
            draw(np.random.default_rng((seed, q)), c, self.dtype, op)
            for q, c in enumerate(input_counts(program, self.counts))
        ]

    def due(self, choice: Choice, seed: int) -> tuple[list[Any], list[Any], list[int]]:
        """Return every rank's input, the outputs that are due, and their sizes."""
        program = choice.algorithm.build(self.num_ranks, **self.params)
        given = self.given(program, seed)
        want = interpret(
            program, given, dtype=self.dtype, op=self.op, counts=self.counts
        )
        return given, want, output_counts(program, self.counts)

    def __str__(self) -> str:
        """Return the call in a line."""
        words = f"{self.collective} {self.count} x {self.dtype} {self.op}"
        return f"{words} {self.memory} {self.params or ''}".strip()


def tensor(torch: Any, device: str, values: Any, dtype: str, shift: int = 0) -> Any:
    """Return values as a tensor that begins `shift` elements into its memory."""
    raw = np.ascontiguousarray(values).view(np.uint8).reshape(-1)
    size = storage(dtype).itemsize
    whole = torch.zeros(raw.size + 16 * size, dtype=torch.uint8, device=device)
    part = whole[shift * size : shift * size + raw.size]
    part.copy_(torch.from_numpy(raw.copy()))
    return part.view(getattr(torch, dtype))


def invoke(comm: Any, case: Case, x: Any, out: Any, **how: Any) -> Any:
    """Make the call; `x` and `out` are None where a rank has none."""
    verb = getattr(comm, case.collective)
    options = {**case.params, **how}
    if case.collective in ("all_reduce", "reduce", "reduce_scatter"):
        options["op"] = case.op
    if case.collective == "permute":
        return verb(x, options.pop("pairs"), out=out, **options)
    return verb(x, out=out, **options)


def _jobs(cases: Iterable[Case], pins: Sequence[str]) -> dict[str, tuple[Any, ...]]:
    """Return the kernels to compile: plan's parts by a key, each once."""
    selector = Selector("cuda")
    found: dict[str, tuple[Any, ...]] = {}
    for case in cases:
        choice = case.choice(selector)
        moves = not collectives.get(case.collective).reduces
        size = storage(case.dtype).itemsize
        kind = f"{size}" if moves else f"{case.dtype} {case.op}"
        in_place = case.in_place
        key = f"{choice} {case.params} {in_place} {kind}"
        found[key] = (case, str(choice), in_place)
    for pin in pins:
        name = algorithms.get(pin.split()[0]).collective
        first = next(iter(cases))
        case = Case(collective=name, num_ranks=first.num_ranks, count=1, dtype="int64")
        found[pin] = (case, pin, True)
    return found


def _compile(job: tuple[Any, ...], rank: int) -> str:
    """Compile one rank's kernel of a job into the cache."""
    from stretto.runtime.choice.select import parse_pin

    case, pin, in_place = job
    try:
        algorithm, schedule = parse_pin(pin)
        assert schedule is not None, "a choice says its schedule"
        args = (algorithm, case.num_ranks, frozen(case.params), schedule, in_place)
        plan = proved_plan(*args)
        if runs_on_engine(plan.value):
            return ""
        kernel = kernel_of(plan, rank=rank, dtype=case.dtype, op=Operator(case.op))
        compile_kernel(kernel, arch=(9, 0))
    except StrettoError as e:
        return f"{case}: {e}"
    return ""


def warm(cases: Sequence[Case], pins: Sequence[str] = ()) -> tuple[int, float]:
    """Compile what cases need on all cores; return how many kernels, and seconds."""
    began = time.monotonic()
    jobs = [
        (job, r)
        for job in _jobs(cases, pins).values()
        for r in range(cases[0].num_ranks)
    ]
    with ProcessPoolExecutor(max(1, (os.cpu_count() or 2) - 1)) as pool:
        list(pool.map(_compile, *zip(*jobs, strict=True), chunksize=2))
    return len(jobs), time.monotonic() - began
