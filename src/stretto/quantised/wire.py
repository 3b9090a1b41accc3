"""What goes over the wire: its formats, and how a vector is cut into records.

Blocks of 128 elements have one scale: the largest of a block becomes the largest number
of the format. So an element's error is at most, of the largest of its block, M:

    int8_128    M / 254
    fp8_128     its own size / 16, and at least M / 458752

A sum over n ranks is off by the errors of its n terms, and by one more of its own, made
when it goes to everybody. A block that holds what is not finite comes out as NaN.
"""

from __future__ import annotations

from typing import NamedTuple

from stretto.errors import CallError

__all__ = ["DTYPES", "GROUP", "OPERATORS", "WIRES", "Parts", "wire_in"]

GROUP = 128
"""Elements that have one scale."""
WIRES = {"fp8_128": 0, "int8_128": 1}
"""The formats, as loops and kernels are told them."""
DTYPES = ("float32", "bfloat16", "float16")
OPERATORS = ("sum", "avg")


class Parts(NamedTuple):
    """How a vector is cut: a part for each rank, all of `each` elements."""

    num_ranks: int
    elements: int
    each: int
    """A multiple of a block; the last parts may be shorter, or empty."""

    @classmethod
    def of(cls, num_ranks: int, elements: int, unit: int = GROUP) -> Parts:
        """Return it for a vector of so many elements."""
        blocks = -(-elements // (num_ranks * unit))
        return cls(num_ranks, elements, max(1, blocks) * unit)

    @property
    def nbytes(self) -> int:
        """Return the bytes of a part's record: its elements, then their scales."""
        return self.each + 4 * (self.each // GROUP)


def wire_in(given: object, where: str) -> str | None:
    """Return what a caller says of the wire, or raise what is known."""
    if given is None or (isinstance(given, str) and given in WIRES):
        return given
    known = " or ".join(map(repr, WIRES))
    raise CallError(f"{where}={given!r:.60}; want {known}, or None: as it is")
