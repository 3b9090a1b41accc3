"""A check of ranks on several hosts: what it is given, and how it is registered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

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

    def __init__(self, comm: Any, torch: Any, device: str) -> None:
        self.comm, self.torch, self.device = comm, torch, device
        self.rank, self.n = comm.rank, comm.num_ranks
        self.wrong: list[str] = []
        self.cases = 0
        self.said: dict[str, Any] = {}

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
