"""What all ranks know about a call, and what answers it: a choice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from stretto.compiler.plan import Schedule
from stretto.program.lang import Algorithm
from stretto.runtime.choice.bits import ANY

FrozenParams: TypeAlias = tuple[tuple[str, object], ...]
"""Parameters as something that can be hashed."""
Seats: TypeAlias = tuple[str, tuple[int, ...]]
"""A machine by its name, and the place of each rank on it."""
NO_SEATS: Seats = ("", ())
STAGED, ZERO_COPY, ACROSS = "staged", "zero_copy", "across"
HALF, WHOLE = "half", "whole"
MOST_SIMULATED = 16
"""Ranks up to which candidates are simulated; beyond, the first that works is taken."""


class Choice(NamedTuple):
    """An algorithm and how to run it."""

    algorithm: Algorithm
    schedule: Schedule

    def __str__(self) -> str:
        """Return the text that pins it."""
        return f"{self.algorithm.name} {self.schedule}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What all ranks know about a call."""

    executor: str
    collective: str
    num_ranks: int
    nbytes: int
    """The full vector: S of a size."""
    memory: str = STAGED
    """zero_copy when the arrays are registered: both memories are then possible."""
    across: bool = False
    """Whether the kernel copies between the ranks' memories: what is staged may then go
    across."""
    in_place: bool = True
    params: FrozenParams = ()
    dtypes: str = ""
    """The class of the element type; nothing where any will do."""
    hosts: tuple[int, ...] = ()
    """The host of each rank; empty: all are on one."""
    seats: Seats = NO_SEATS
    """Where ranks sit on a machine; nothing: anywhere, or it is the same where."""
    beside: bool = False
    """Whether others run beside it: rows that were measured so are about it."""
    bits: str = ANY
    """What its sums promise: `invariant` ones are added in rank order only,
    `pairs` by neighbours."""

    @property
    def one_way(self) -> bool:
        """Return whether it is a permutation in which nobody sends and receives."""
        pairs: Any = dict(self.params).get("pairs", ())
        return bool(pairs) and not {a for a, _ in pairs} & {b for _, b in pairs}


def dtype_class(dtype: str) -> str:
    """Return the class of types that are as fast to combine: `half` or `whole`.

    Sums of floats of 16 bits or less are held in wider ones.
    """
    return HALF if dtype.startswith(("bfloat16", "float16", "float8")) else WHOLE
