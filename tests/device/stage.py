"""A stage: one rank's part of what a communicator is asked to do on GPUs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stretto.runtime.choice.selector import Selector

STAGES: dict[str, Callable[[Stage], None]] = {}


class Stage:
    """One rank's part of a stage: its communicator, and what went wrong."""

    def __init__(self, comm: Any, torch: Any, device: str) -> None:
        self.comm, self.torch, self.device = comm, torch, device
        self.rank, self.n = comm.rank, comm.num_ranks
        self.selector = Selector("cuda")
        self.wrong: list[str] = []
        self.cases = 0
        self.said: dict[str, Any] = {}

    def expect(self, good: bool, text: str) -> None:
        """Count a case; note what is wrong with it."""
        self.cases += 1
        if not good:
            self.wrong.append(text)

    def sync(self) -> None:
        """Wait for the GPU, then for everybody."""
        if self.device != "cpu":
            self.torch.cuda.synchronize()
        self.comm.check()

    def full(self, count: int, value: float, dtype: str = "float32") -> Any:
        """Return a tensor of one value."""
        kind = getattr(self.torch, dtype)
        return self.torch.full((count,), value, dtype=kind, device=self.device)

    def bits(self, given: Any) -> Any:
        """Return a tensor's bytes in host memory."""
        return given.contiguous().reshape(-1).view(self.torch.uint8).cpu().numpy()


def stage(function: Callable[[Stage], None]) -> Callable[[Stage], None]:
    """Register a stage under its name."""
    STAGES[function.__name__] = function
    return function
