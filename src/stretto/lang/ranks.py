"""What an algorithm's author holds: ranks, their buffers, references to chunks.

A reference names chunks and reads nothing. The assignment that uses it is recorded as
one operation, with the author's file and line.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, SupportsIndex, overload

from stretto.errors import BoundsError, ProgramError
from stretto.ir import INPUT, OUTPUT, Op, Ref, Via

__all__ = ["Buffer", "Rank", "Ranks", "Reduction", "Reference", "Trace", "reduce"]


class Trace:
    """The operations recorded so far. One per build; there is no global one."""

    def __init__(self) -> None:
        self.ops: list[Op] = []
        self.scratch: dict[str, int] = {}
        self.phase = ""
        self.places: list[str] = []
        self._place_ids: dict[tuple[object, int], int] = {}

    def record(
        self, dst: Ref, srcs: tuple[Ref, ...], ways: tuple[Via | None, ...]
    ) -> None:
        """Record one assignment, made three frames up."""
        frame = sys._getframe(2)
        key = (frame.f_code, frame.f_lineno)
        place = self._place_ids.get(key)
        if place is None:
            place = self._place_ids[key] = len(self.places)
            self.places.append(f"{frame.f_code.co_filename}:{frame.f_lineno}")
        given = any(way is not None for way in ways)
        self.ops.append(Op(dst, srcs, self.phase, place, ways if given else ()))


class Reference:
    """Chunks of a buffer. `+=` combines into them with the collective's operator."""

    __slots__ = ("ref", "way")

    def __init__(self, ref: Ref, way: Via | None = None) -> None:
        self.ref, self.way = ref, way

    def via(self, *switches: str) -> Reference:
        """Return the same chunks, taken over these switches; none: over one link.

        It is what a planner wants of the machine. What is computed does not depend on
        it, and who has no choice of ways ignores it.
        """
        wrong = [s for s in switches if not s or set(s) & set(" \t\n>#+=")]
        if wrong:
            raise ProgramError(f"{self.ref}.via({wrong[0]!r}): want names of switches")
        return Reference(self.ref, switches)

    def __iadd__(self, other: object) -> Any:
        """Return the combination that the assignment will store."""
        if not isinstance(other, Reference):
            raise ProgramError(
                f"{self.ref} += {other!r}: want one reference; to combine several in "
                f"one rounding write x = reduce(x, a, b)"
            )
        return Reduction((self.ref, other.ref), (self.way, other.way))

    def __repr__(self) -> str:
        """Return the text form."""
        return str(self.ref)


class Reduction(NamedTuple):
    """A combination that has not been stored yet."""

    srcs: tuple[Ref, ...]
    ways: tuple[Via | None, ...]


def reduce(*parts: Reference | Iterable[Reference]) -> Reduction:
    """Combine references with the collective's operator, left to right."""
    refs: list[Reference] = []
    for part in parts:
        many = part if isinstance(part, Iterable) else (part,)
        for one in many:
            if not isinstance(one, Reference):
                raise ProgramError(f"reduce() got {one!r}; want references like r.x[0]")
            refs.append(one)
    if not refs:
        raise ProgramError("reduce() of nothing; want at least one reference")
    return Reduction(tuple(r.ref for r in refs), tuple(r.way for r in refs))


class Buffer:
    """One buffer of one rank, divided into chunks."""

    __slots__ = ("_chunks", "_name", "_rank", "_trace")

    def __init__(self, trace: Trace, rank: int, name: str, chunks: int) -> None:
        self._trace, self._rank, self._name, self._chunks = trace, rank, name, chunks

    def __len__(self) -> int:
        """Return the number of chunks."""
        return self._chunks

    def _ref(self, key: SupportsIndex | slice) -> Ref:
        if isinstance(key, slice):
            start = 0 if key.start is None else int(key.start)
            stop = self._chunks if key.stop is None else int(key.stop)
            if key.step is not None or not 0 <= start < stop <= self._chunks:
                raise BoundsError(
                    f"r{self._rank}.{self._name}[{key.start}:{key.stop}]: the buffer "
                    f"has {self._chunks} chunks; ranges do not wrap and are not empty"
                )
            return Ref(self._rank, self._name, start, stop)
        index = int(key) % self._chunks
        return Ref(self._rank, self._name, index, index + 1)

    def __getitem__(self, key: SupportsIndex | slice) -> Reference:
        """Name chunks: `b[i]` wraps, `b[a:b]` does not, `b[:]` is all of it."""
        return Reference(self._ref(key))

    def __setitem__(
        self, key: SupportsIndex | slice, value: Reference | Reduction
    ) -> None:
        """Store a copy or a combination."""
        dst = self._ref(key)
        if isinstance(value, Reference):
            srcs: tuple[Ref, ...] = (value.ref,)
            ways: tuple[Via | None, ...] = (value.way,)
        elif isinstance(value, Reduction):
            srcs, ways = value.srcs, value.ways
        else:
            raise ProgramError(f"{dst} = {value!r}; want a reference or reduce(...)")
        width = dst.stop - dst.start
        for src in srcs:
            if src.stop - src.start != width:
                raise BoundsError(
                    f"{dst} = {src}: {width} chunks on the left, "
                    f"{src.stop - src.start} on the right; want as many on both sides"
                )
        self._trace.record(dst, srcs, ways)


@dataclass(frozen=True, slots=True)
class Sides:
    """How many input and output chunks every rank has; 0 means: does not exist."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    members: tuple[int, ...]
    """The ranks that have a place; the others have no input and no output."""


class Rank(int):
    """A rank: an int that has buffers."""

    _ranks: Ranks

    def _side(self, name: str, chunks: int) -> Buffer:
        if not chunks:
            raise BoundsError(
                f"rank {int(self)} has no {name} in this collective; "
                f"only some ranks have (see its root, its pairs, or its members)"
            )
        return Buffer(self._ranks.trace, int(self), name, chunks)

    @property
    def input(self) -> Buffer:
        """What the caller passed, from the first line to the last."""
        return self._side(INPUT, self._ranks.sides.inputs[self])

    @property
    def output(self) -> Buffer:
        """What the caller will get."""
        return self._side(OUTPUT, self._ranks.sides.outputs[self])

    def scratch(self, name: str, chunks: int) -> Buffer:
        """Return room of this rank's own, the same number of chunks on all ranks."""
        if name in (INPUT, OUTPUT) or not name.isidentifier() or chunks < 1:
            raise BoundsError(
                f"scratch({name!r}, {chunks}): want an identifier other than input "
                f"and output, and at least one chunk"
            )
        known = self._ranks.trace.scratch.setdefault(name, chunks)
        if known != chunks:
            raise BoundsError(
                f"scratch {name!r} has {known} chunks; rank {int(self)} asks {chunks}"
            )
        return Buffer(self._ranks.trace, int(self), name, chunks)

    @property
    def place(self) -> int:
        """Its number among the members: whose part of a buffer is whose."""
        if self not in self._ranks.places:
            raise BoundsError(
                f"rank {int(self)} is not a member, so it has no place; members are "
                f"{self._ranks.sides.members}"
            )
        return self._ranks.places[self]

    @property
    def others(self) -> tuple[Rank, ...]:
        """The other ranks, in rank order starting after this one."""
        ranks = self._ranks
        return tuple(ranks[self + i] for i in range(1, len(ranks)))


class Ranks(Sequence[Rank]):
    """All ranks. `ranks[i]` wraps."""

    def __init__(self, trace: Trace, sides: Sides) -> None:
        self.trace, self.sides = trace, sides
        self._all = tuple(Rank(r) for r in range(len(sides.inputs)))
        for rank in self._all:
            rank._ranks = self
        self.places = {rank: place for place, rank in enumerate(sides.members)}

    @property
    def members(self) -> tuple[Rank, ...]:
        """Those that contribute and receive, in order; the others pass data on."""
        return tuple(self._all[rank] for rank in self.places)

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._all)

    @overload
    def __getitem__(self, index: SupportsIndex) -> Rank: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Rank]: ...

    def __getitem__(self, index: SupportsIndex | slice) -> Rank | Sequence[Rank]:
        """Return rank `index` modulo their number, or a slice of them."""
        if isinstance(index, slice):
            return self._all[index]
        return self._all[int(index) % len(self._all)]

    def __iter__(self) -> Iterator[Rank]:
        """Go through them in order."""
        return iter(self._all)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Name a part of the program, which a schedule may treat differently."""
        if not name.isidentifier():
            raise ProgramError(f"phase({name!r}): want an identifier")
        before, self.trace.phase = self.trace.phase, name
        try:
            yield
        finally:
            self.trace.phase = before
