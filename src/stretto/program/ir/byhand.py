"""A kernel written by hand: its text, and which calls it takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

Room = Callable[[int, int, int], int]
"""Bytes of scratch on every rank for (bytes of a part, ranks, blocks)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Handwritten:
    """A kernel of somebody's own: CUDA C++, and which calls it takes."""

    source: str
    """Text that defines `template <class Task> __device__ void FUNCTION(Task&)`."""
    function: str
    dtypes: frozenset[str]
    """Names of element types; empty: any."""
    ops: frozenset[str]
    most_bytes: int
    """The largest part (`counts[0]` elements) that it takes."""
    memory: frozenset[str]
    scratch: Room
    packets: Room

    def refuses(
        self, *, dtype: str, op: str, counts: Sequence[int], itemsize: int, memory: str
    ) -> str:
        """Return why a call is not taken, or nothing."""
        nbytes = max(counts, default=0) * itemsize
        if self.dtypes and dtype not in self.dtypes:
            return f"{dtype}; it takes {', '.join(sorted(self.dtypes))}"
        if op not in self.ops:
            return f"op {op}; it takes {', '.join(sorted(self.ops))}"
        if len(set(counts)) != 1:
            return "parts of unequal sizes"
        if nbytes > self.most_bytes:
            return f"{nbytes} bytes; it takes {self.most_bytes}"
        if memory not in self.memory:
            return f"{memory} memory; it takes {', '.join(sorted(self.memory))}"
        return ""
