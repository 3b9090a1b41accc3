"""A collective among some of the ranks: its members. The others only pass data on.

The members are numbered by their *place*: a pattern knows nothing but places. This is
the one table between the two; a rank that has no place has no input and no output.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stretto.errors import CallError
from stretto.program.collectives.base import Need, Pattern, Shape, SymbolRun
from stretto.program.elements import Array, Operator
from stretto.program.ir import freeze


@dataclass(frozen=True, slots=True)
class Collective:
    """A pattern among the members of a shape; without `members`, among all ranks."""

    pattern: Pattern

    @property
    def name(self) -> str:
        """Return the name by which it is found."""
        return self.pattern.name

    @property
    def reduces(self) -> bool:
        """Return whether contributions are combined with an operator."""
        return self.pattern.reduces

    @property
    def splits_whole(self) -> bool:
        """Return whether one vector is divided, or each part by itself."""
        return self.pattern.splits_whole

    @property
    def rooted(self) -> bool:
        """Return whether the collective has a `root`."""
        return self.pattern.rooted

    def check(self, shape: Shape) -> None:
        """Raise `CallError` when the parameters make no sense."""
        shape.check()
        if "members" in shape.params:
            _check_members(self.name, shape)
        self.pattern.check(_among(shape))

    def equal_counts(
        self, shape: Shape, *, nbytes: int, itemsize: int
    ) -> tuple[int, ...]:
        """Return equal counts for a full vector of so many bytes, rounded up."""
        if nbytes < 0:
            raise CallError(f"nbytes={nbytes}; want 0 or more")
        parts = self.num_parts(shape)
        divided = shape.num_members if parts > 1 and self.name != "permute" else 1
        return (math.ceil(nbytes / itemsize / divided),) * parts

    # By rank: what a rank has, by its place.

    def input_runs(self, shape: Shape, rank: int) -> tuple[SymbolRun, ...]:
        """Return the symbols of a rank's input; empty when it has none."""
        place = shape.place(rank)
        return () if place is None else self.pattern.input_runs(_among(shape), place)

    def output_runs(self, shape: Shape, rank: int) -> tuple[SymbolRun, ...]:
        """Return the symbols of a rank's output; empty when it has none."""
        place = shape.place(rank)
        return () if place is None else self.pattern.output_runs(_among(shape), place)

    def promise(self, shape: Shape, rank: int) -> tuple[Need, ...]:
        """Return what a rank's output must hold at the end."""
        place = shape.place(rank)
        if place is None:
            return ()
        needs = self.pattern.promise(_among(shape), place)
        if "members" not in shape.params:
            return needs
        return tuple(n._replace(ranks=_spread(n.ranks, shape.members)) for n in needs)

    def in_place(self, shape: Shape, rank: int) -> int | None:
        """Return where the input lies in the output in place; None: output in input."""
        place = shape.place(rank)
        return 0 if place is None else self.pattern.in_place(_among(shape), place)

    def oracle(
        self, shape: Shape, inputs: Sequence[Array], op: Operator, counts: Array
    ) -> list[Array]:
        """Return every rank's output, computed the plain way in NumPy.

        `inputs` and outputs are flat; those that do not exist are empty.
        """
        outputs = [part[:0] for part in inputs]
        taking_part = [inputs[r] for r in shape.members]
        made = self.pattern.oracle(_among(shape), taking_part, op, counts)
        for rank, part in zip(shape.members, made, strict=True):
            outputs[rank] = part
        return outputs

    # By call: how the data are divided, the same for all ranks.

    def num_parts(self, shape: Shape) -> int:
        """Return how many counts a call has: one, one a member, or one a pair."""
        return self.pattern.num_parts(_among(shape))

    def chunks_per_part(self, shape: Shape) -> int:
        """Return into how many chunks each count is divided."""
        return self.pattern.chunks_per_part(_among(shape))

    def num_symbols(self, shape: Shape) -> int:
        """Return how many symbols there are."""
        return self.pattern.num_symbols(_among(shape))

    def symbol_sizes(
        self, shape: Shape, counts: Array, itemsize: int
    ) -> NDArray[np.int64]:
        """Return the elements of every symbol for the given counts."""
        return self.pattern.symbol_sizes(_among(shape), counts, itemsize)


def _among(shape: Shape) -> Shape:
    """Return the shape as its members see it: they are all, numbered by place."""
    if "members" not in shape.params:
        return shape
    params = {k: v for k, v in shape.params.items() if k != "members"}
    if "root" in params:
        place = shape.place(shape.root)
        if place is None:
            raise CallError(
                f"root={shape.root} is not a member; want one of {shape.members}"
            )
        params["root"] = place
    return Shape(num_ranks=shape.num_members, split=shape.split, params=freeze(params))


def _spread(places: int, members: Sequence[int]) -> int:
    """Return the bit set of ranks at a bit set of places."""
    if not places & (places - 1):
        return 1 << members[places.bit_length() - 1]
    return sum(1 << rank for place, rank in enumerate(members) if places >> place & 1)


def _check_members(name: str, shape: Shape) -> None:
    given = shape.params["members"]
    if not isinstance(given, tuple) or not _rises(given):
        raise CallError(f"members={given!r}; want ranks in order, such as (0, 1, 4)")
    if not 0 <= given[0] <= given[-1] < shape.num_ranks:
        raise CallError(f"members={given}; want ranks below {shape.num_ranks}")
    if "pairs" in shape.params:
        raise CallError(f"{name} with members: its pairs say who takes part")


def _rises(ranks: tuple[object, ...]) -> bool:
    numbers = [rank for rank in ranks if type(rank) is int]
    return len(numbers) == len(ranks) > 0 and numbers == sorted(set(numbers))
