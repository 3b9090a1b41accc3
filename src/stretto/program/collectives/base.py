"""What a collective does: its buffers, its promise, its sizes and its oracle.

Legend: R ranks, r rank, k split. A *symbol* stands for an unknown number of elements;
chunks with the same symbol have the same size. Runs are intervals, so that the
description of a thousand ranks stays small.
"""

from __future__ import annotations

import abc
import enum
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stretto.errors import CallError
from stretto.program.elements import Array, Operator
from stretto.program.ir import Params, freeze, members_of, partition

_MOST_RANKS = 1 << 14
"""A proof of more would follow what every rank knows of every other: gigabytes."""
_MOST_SYMBOLS = 1 << 24
"""Chunks of all parts: a call computes the size of each."""


class SymbolRun(NamedTuple):
    """Chunks `start` to `stop` of a buffer have symbols `first`, `first + 1`, ..."""

    start: int
    stop: int
    first: int


class Need(NamedTuple):
    """Output chunks `start` to `stop` hold input chunks `chunk`, ... of `ranks`."""

    start: int
    stop: int
    chunk: int
    ranks: int
    """A bit set: bit q is set when rank q contributes, exactly once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How many ranks, how finely split, and the collective's parameters."""

    num_ranks: int
    split: int = 1
    params: Params = field(default_factory=lambda: freeze({}))

    @classmethod
    def of(cls, made: Any) -> Shape:
        """Return the shape of a program, or of a plan."""
        return cls(num_ranks=made.num_ranks, split=made.split, params=made.params)

    @property
    def root(self) -> int:
        """Return the root rank."""
        root = self.params.get("root", 0)
        if (
            not isinstance(root, int)
            or isinstance(root, bool)
            or not 0 <= root < self.num_ranks
        ):
            raise CallError(f"root={root!r}; want a rank below {self.num_ranks}")
        return root

    def check(self) -> None:
        """Raise `CallError` unless ranks and split are numbers that can be served."""
        n, split = self.num_ranks, self.split
        if type(n) is not int or n < 1:
            raise CallError(f"{n!r} ranks; want a whole number, at least 1")
        if n > _MOST_RANKS:
            raise CallError(
                f"{n:,} ranks; want at most {_MOST_RANKS:,}: a proof follows what "
                f"every rank knows of every other, here {8 * n * n / 1e9:,.0f} GB"
            )
        if type(split) is not int or split < 1:
            raise CallError(
                f"split={split!r}; want a whole number of chunks a part, at least 1"
            )

    @property
    def everyone(self) -> int:
        """Return the bit set of all ranks."""
        return (1 << self.num_ranks) - 1

    @property
    def members(self) -> Sequence[int]:
        """Return the ranks that contribute and receive; the others pass data on."""
        return members_of(self.num_ranks, self.params)

    @property
    def num_members(self) -> int:
        """Return how many ranks contribute and receive: what an average divides by."""
        return len(self.members)

    def place(self, rank: int) -> int | None:
        """Return a rank's number among the members; None: it only passes data on."""
        if "members" not in self.params:
            return rank
        members = self.members
        at = bisect_left(members, rank)
        return at if at < len(members) and members[at] == rank else None


class Holds(enum.Enum):
    """What the ranks have of the data, before a collective or after it."""

    PART = "part"
    """Every rank its own, one after another in rank order."""
    WHOLE = "whole"
    """Every rank all of it."""
    AT_ROOT = "at_root"
    """The root all of it, and the others nothing."""


class Pattern(abc.ABC):
    """One collective among ranks that all take part, in `shape.num_ranks`.

    Subclasses live in one file each and are found by scanning. A `Collective` is a
    pattern among the members of a shape: what everybody else works with. Most of them
    say what ranks give and take, and everything but the oracle follows from that.
    """

    name: ClassVar[str]
    reduces: ClassVar[bool] = False
    """Whether contributions are combined with an operator."""
    splits_whole: ClassVar[bool] = False
    """Whether one vector is divided among ranks, or each part by itself."""
    rooted: ClassVar[bool] = False
    """Whether the collective has a `root`."""

    gives: ClassVar[Holds | None] = None
    takes: ClassVar[Holds | None] = None
    """What ranks pass, and what they get; None: the collective says it by itself."""

    def input_runs(self, shape: Shape, rank: int) -> tuple[SymbolRun, ...]:
        """Return the symbols of a rank's input; empty when it has none."""
        return self._runs(self.gives, shape, rank)

    def output_runs(self, shape: Shape, rank: int) -> tuple[SymbolRun, ...]:
        """Return the symbols of a rank's output; empty when it has none."""
        return self._runs(self.takes, shape, rank)

    def _runs(
        self, side: Holds | None, shape: Shape, rank: int
    ) -> tuple[SymbolRun, ...]:
        if side is Holds.PART:
            return (SymbolRun(0, shape.split, rank * shape.split),)
        if side is None or (side is Holds.AT_ROOT and rank != shape.root):
            return ()
        return (SymbolRun(0, self.num_symbols(shape), 0),)

    def promise(self, shape: Shape, rank: int) -> tuple[Need, ...]:
        """Return what a rank's output must hold at the end."""
        runs, k = self.output_runs(shape, rank), shape.split
        if self.gives is Holds.PART:
            owners = range(shape.num_ranks) if runs else ()
            return tuple(Need(q * k, (q + 1) * k, 0, 1 << q) for q in owners)
        ranks = shape.everyone if self.reduces else 1 << shape.root
        return tuple(Need(*run, ranks) for run in runs)

    def num_parts(self, shape: Shape) -> int:
        """Return how many counts a call has: one, one a rank, or one a pair."""
        return 1 if self.splits_whole else shape.num_ranks

    @abc.abstractmethod
    def oracle(
        self, shape: Shape, inputs: Sequence[Array], op: Operator, counts: Array
    ) -> list[Array]:
        """Return every rank's output, computed the plain way in NumPy.

        `inputs` and outputs are flat; those that do not exist are empty.
        """

    def in_place(self, shape: Shape, rank: int) -> int | None:
        """Return where the input lies in the output in place; None: output in input.

        For most collectives both start together: 0. all_gather's input is the rank's
        own part of the output; reduce_scatter's output is its own part of the input.
        """
        if self.gives is self.takes or Holds.PART not in (self.gives, self.takes):
            return 0
        return rank * shape.split if self.gives is Holds.PART else None

    def chunks_per_part(self, shape: Shape) -> int:
        """Return into how many chunks each count is divided."""
        return shape.split * (shape.num_ranks if self.splits_whole else 1)

    def num_symbols(self, shape: Shape) -> int:
        """Return how many symbols there are."""
        return self.num_parts(shape) * self.chunks_per_part(shape)

    def symbol_sizes(
        self, shape: Shape, counts: Array, itemsize: int
    ) -> NDArray[np.int64]:
        """Return the elements of every symbol for the given counts."""
        counts = np.asarray(counts, dtype=np.int64).ravel()
        if counts.size != self.num_parts(shape) or (counts < 0).any():
            want = self.num_parts(shape)
            raise CallError(f"{self.name}: counts {counts}, want {want} of them, >= 0")
        pieces = self.chunks_per_part(shape)
        if counts.size and (counts == counts[0]).all():
            return np.tile(partition(int(counts[0]), pieces, itemsize), counts.size)
        sizes = [partition(int(c), pieces, itemsize) for c in counts]
        return np.concatenate(sizes) if sizes else np.zeros(0, np.int64)

    def check(self, shape: Shape) -> None:
        """Raise `CallError` when the parameters make no sense."""
        if self.rooted:
            _ = shape.root
        if (chunks := self.num_symbols(shape)) > _MOST_SYMBOLS:
            raise CallError(
                f"{self.name} among {shape.num_ranks:,} ranks, split={shape.split}: "
                f"{chunks:,} chunks; want at most {_MOST_SYMBOLS:,}"
            )


def bus_factor(collective: str, num_ranks: int) -> float:
    """Return bus over algorithm bandwidth: what a link of a ring would carry."""
    share = (num_ranks - 1) / num_ranks if num_ranks else 0.0
    match collective:
        case "all_reduce":
            return 2 * share
        case "all_gather" | "reduce_scatter" | "all_to_all" | "gather" | "scatter":
            return share
        case _:
            return 1.0
