"""A check of ranks on several hosts: what it is given, and how it is registered."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from stretto.errors import StrettoError
from stretto.executors.cuda.codegen.compile import compile_all
from stretto.executors.cuda.codegen.generate import kernel_of
from stretto.program.collectives import Operator, storage
from stretto.runtime.choice.plans import frozen, proved_plan
from stretto.runtime.choice.question import Question
from stretto.runtime.choice.selector import Selector

Call = tuple[str, int, str, str, Any]
"""A collective, its count, a type, an operator, and a pin."""
POISON = 77


class Check(NamedTuple):
    """A function, and the seconds that must be left for it."""

    function: Callable[[Hosted], None]
    seconds: float


CHECKS: dict[str, Check] = {}


def check(seconds: float) -> Callable[[Callable[[Hosted], None]], Any]:
    """Register a check under its name."""

    def register(function: Callable[[Hosted], None]) -> Callable[[Hosted], None]:
        CHECKS[function.__name__] = Check(function, seconds)
        return function

    return register


class Hosted:
    """One rank's part of a check: its communicator, and what went wrong."""

    def __init__(
        self, comm: Any, torch: Any, device: str, until: float = math.inf
    ) -> None:
        self.comm, self.torch, self.device = comm, torch, device
        self.rank, self.n = comm.rank, comm.num_ranks
        self.until = until
        self.wrong: list[str] = []
        self.cases = 0
        self.said: dict[str, Any] = {}

    def late(self) -> bool:
        """Return whether no time is left, on whichever rank (collective)."""
        return any(self.comm.all_gather_object(time.monotonic() > self.until))

    def compile(self, calls: Sequence[Call]) -> None:
        """Compile this rank's kernels for calls, side by side."""
        if self.device == "cpu":
            return
        kernels = {}
        for name, count, dtype, op, pin in calls:
            kernel = self._kernel(name, count, dtype, op, pin)
            if kernel is not None:
                kernels[kernel.digest] = kernel
        arch = self.torch.cuda.get_device_capability()
        cores = max(1, (os.cpu_count() or 4) // self.n)
        compile_all(kernels.values(), arch=tuple(arch), threads=cores)

    def _kernel(self, name: str, count: int, dtype: str, op: str, pin: Any) -> Any:
        params: dict[str, Any] = {}
        if name == "permute":
            params["pairs"] = tuple((r, (r + 1) % self.n) for r in range(self.n))
        elif name in ("broadcast", "reduce", "gather", "scatter"):
            params["root"] = self.n - 1
        whole = count if name in ("all_reduce", "broadcast", "reduce", "permute") else (
            count * self.n
        )  # fmt: skip
        asked = Question(
            executor="cuda", collective=name, num_ranks=self.n,
            nbytes=whole * storage(dtype).itemsize, params=frozen(params),
            hosts=self.comm.hosts,
        )  # fmt: skip
        try:
            choice = Selector("cuda").choose(asked, pin)
            args = choice.algorithm, self.n, frozen(params), choice.schedule, True
            plan = proved_plan(*args, self.comm.hosts)
            return kernel_of(plan, rank=self.rank, dtype=dtype, op=Operator(op))
        except StrettoError:
            return None

    def sync(self) -> None:
        """Wait for the GPU, and raise what calls have met."""
        if self.device != "cpu":
            self.torch.cuda.synchronize()
        self.comm.check()

    def given(self, rank: int, count: int, seed: int = 0) -> Any:
        """Return a rank's input: whole numbers from 1 to 3."""
        drawn = np.random.default_rng((seed, rank)).integers(1, 4, count)
        return drawn.astype(np.float64)

    def put(self, values: Any, dtype: str = "float32", shift: int = 0) -> Any:
        """Return values as a tensor that begins `shift` elements into its memory."""
        kind = getattr(self.torch, dtype)
        whole = self.torch.empty(len(values) + 16, dtype=kind, device=self.device)
        part = whole[shift : shift + len(values)]
        part.copy_(self.torch.from_numpy(np.asarray(values)).to(kind))
        return part

    def room(self, count: int, dtype: str = "float32") -> Any:
        """Return a tensor that holds what nobody wants."""
        kind = getattr(self.torch, dtype)
        return self.torch.full((count,), POISON, dtype=kind, device=self.device)

    def due(self, text: str, want: Any, got: Any) -> None:
        """Count a case; note where a result is not what is due."""
        self.cases += 1
        wide = self.torch.complex128 if got.is_complex() else self.torch.float64
        have = got.detach().reshape(-1).cpu().to(wide).numpy()
        want = np.asarray(want).reshape(-1)
        if have.shape != want.shape:
            self.wrong.append(f"{text}: {have.shape} elements, want {want.shape}")
            return
        bad = np.flatnonzero(have != want)
        if bad.size:
            first = int(bad[0])
            self.wrong.append(
                f"{text}: {bad.size} of {want.size} wrong, first {first}: "
                f"{have[first]}, want {want[first]}"
            )

    def expect(self, good: bool, text: str) -> None:
        """Count a case; note what is wrong with it."""
        self.cases += 1
        if not good:
            self.wrong.append(text)
