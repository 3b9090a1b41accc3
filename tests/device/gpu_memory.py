"""Device memory for checks: allocations of exact size, freed together."""

from __future__ import annotations

from stretto.executors.cuda.device.driver import ask

__all__ = ["Memory"]


class Memory:
    """Device allocations of exact size, freed together."""

    def __init__(self) -> None:
        self._all: list[int] = []

    def new(self, nbytes: int, fill: int = 0) -> int:
        """Return an allocation filled with one byte."""
        start = int(ask("cuMemAlloc", max(nbytes, 1)))
        self._all.append(start)
        ask("cuMemsetD8", start, fill, max(nbytes, 1))
        return start

    def free(self) -> None:
        """Free everything."""
        for start in self._all:
            ask("cuMemFree", start)
        self._all.clear()
