"""What an algorithm's author holds: ranks, their buffers, references to chunks.

A reference names chunks and reads nothing. The assignment that uses it is recorded as
one operation, with the author's file and line.
"""

from __future__ import annotations

import difflib
import operator
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, SupportsIndex, overload

from stretto.errors import BoundsError, ProgramError
from stretto.program.ir import INPUT, OUTPUT, Ref, Via
from stretto.program.lang.trace import Reduction, Trace

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


class Reference:
    """Chunks of a buffer. `+` and `+=` combine with the collective's operator."""

    __slots__ = ("_trace", "ref", "way")

    def __init__(self, trace: Trace, ref: Ref, way: Via | None = None) -> None:
        self._trace, self.ref, self.way = trace, ref, way

    def via(self, *switches: str) -> Reference:
        """Return the same chunks, taken over these switches; none: over one link.

        It is what a planner wants of the machine. What is computed does not depend on
        it, and who has no choice of ways ignores it.
        """
        wrong = [s for s in switches if not s or set(s) & set(" \t\n>#+=")]
        if wrong:
            raise ProgramError(f"{self.ref}.via({wrong[0]!r}): want names of switches")
        return Reference(self._trace, self.ref, switches)

    def __add__(self, other: object) -> Reduction:
        """Return the combination of both, as programs print it."""
        if not isinstance(other, Reference):
            raise ProgramError(
                f"{self.ref} + {other!r}: want references on both sides; sums go from "
                f"left to right, without brackets: a + b + c, or reduce(a, b, c)"
            )
        return Reduction((self.ref, other.ref), (self.way, other.way))

    def __radd__(self, other: object) -> NoReturn:
        """Refuse what is no reference; Python's sum() begins with 0."""
        hint = "; for sum(...) write reduce(...)" if other == 0 else ""
        raise ProgramError(
            f"{other!r} + {self.ref}: want references on both sides{hint}"
        )

    def __iadd__(self, other: object) -> Any:
        """Return the combination that the assignment will store."""
        if not isinstance(other, Reference):
            raise ProgramError(
                f"{self.ref} += {other!r}: want one reference; to combine several in "
                f"one rounding write x = reduce(x, a, b)"
            )
        return self._trace.update(self.ref, other.ref, (self.way, other.way))

    def _unknown(self, *_: object) -> NoReturn:
        """Refuse to be a number, or a condition: there are no data yet."""
        raise ProgramError(
            f"{self.ref}: what it holds is not known while a program is written; want "
            f"whole chunks moved, and combined by + or reduce(...)"
        )

    __bool__ = __int__ = __float__ = __lt__ = __le__ = __gt__ = __ge__ = _unknown
    __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __floordiv__ = _unknown
    __neg__ = __abs__ = _unknown

    def __repr__(self) -> str:
        """Return the text form."""
        return str(self.ref)


def reduce(*parts: Reference | Iterable[Reference]) -> Reduction:
    """Combine references with the collective's operator, left to right."""
    refs: list[Reference] = []
    for part in parts:
        if isinstance(part, Reference):
            refs.append(part)
        elif isinstance(part, Iterable) and not isinstance(part, Buffer):
            for one in part:
                if not isinstance(one, Reference):
                    _no_reference(one)
                refs.append(one)
        else:
            _no_reference(part)
    if not refs:
        raise ProgramError("reduce() of nothing; want at least one reference")
    return Reduction(tuple(r.ref for r in refs), tuple(r.way for r in refs))


def _no_reference(got: object) -> NoReturn:
    hint = "references like r.input[0]"
    if isinstance(got, Buffer):
        hint = f"{got}[:] for all of it, or {got}[i] for one chunk"
    elif isinstance(got, Reduction):
        hint = "references only: all that is combined in one list, reduce(a, b, c)"
    raise ProgramError(f"reduce() got {got!r}; want {hint}")


class Buffer:
    """One buffer of one rank, divided into chunks."""

    __slots__ = ("_chunks", "_name", "_rank", "_trace")

    def __init__(self, trace: Trace, rank: int, name: str, chunks: int) -> None:
        self._trace, self._rank, self._name, self._chunks = trace, rank, name, chunks

    def __len__(self) -> int:
        """Return the number of chunks."""
        return self._chunks

    def __iter__(self) -> Iterator[Reference]:
        """Go through the chunks in order, each once."""
        for index in range(self._chunks):
            ref = Ref(self._rank, self._name, index, index + 1)
            yield Reference(self._trace, ref)

    def __repr__(self) -> str:
        """Return what it is called."""
        return f"r{self._rank}.{self._name}"

    def __add__(self, other: object) -> NoReturn:
        """Refuse: chunks are combined, not buffers."""
        raise ProgramError(
            f"{self} + ...: want chunks: {self}[:] for all of it, or {self}[i] for one"
        )

    __radd__ = __iadd__ = __add__

    def _ref(self, key: SupportsIndex | slice) -> Ref:
        kind = type(key)
        if kind is slice:
            assert isinstance(key, slice)  # for the type checker
            return self._range(key)
        if kind is not int and kind is not Rank:
            key = _whole(key, f"{self}[{key!r}]", f"0 to {self._chunks - 1}")
        index = int(key) % self._chunks  # type: ignore[arg-type]
        return Ref(self._rank, self._name, index, index + 1)

    def _range(self, key: slice) -> Ref:
        start = 0 if key.start is None else key.start
        stop = self._chunks if key.stop is None else key.stop
        if type(start) is not int or type(stop) is not int:
            told, known = self._told(key), f"0 to {self._chunks}"
            start, stop = _whole(start, told, known), _whole(stop, told, known)
        if key.step is not None or not 0 <= start < stop <= self._chunks:
            raise BoundsError(
                f"{self._told(key)}: the buffer has {self._chunks} chunks; ranges do "
                f"not wrap, have no step and are not empty"
            )
        return Ref(self._rank, self._name, start, stop)

    def _told(self, key: slice) -> str:
        return f"{self}[{key.start}:{key.stop}]"

    def __getitem__(self, key: SupportsIndex | slice) -> Reference:
        """Name chunks: `b[i]` wraps, `b[a:b]` does not, `b[:]` is all of it."""
        return Reference(self._trace, self._ref(key))

    def __setitem__(
        self, key: SupportsIndex | slice, value: Reference | Reduction
    ) -> None:
        """Store a copy or a combination."""
        dst = self._ref(key)
        if isinstance(value, Reference):
            if self._trace.pending is not None:
                self._trace.settle()
            srcs: tuple[Ref, ...] = (value.ref,)
            ways: tuple[Via | None, ...] = (value.way,)
        elif isinstance(value, Reduction):
            self._trace.store(dst, value)
            srcs, ways = value.srcs, value.ways
        else:
            hint = f": {value}[:] for all of it" if isinstance(value, Buffer) else ""
            raise ProgramError(
                f"{dst} = {value!r}; want a reference{hint} or reduce(...)"
            )
        width = dst.stop - dst.start
        for src in srcs:
            if src.stop - src.start != width:
                raise BoundsError(
                    f"{dst} = {src}: {width} chunks on the left, "
                    f"{src.stop - src.start} on the right; want as many on both sides"
                )
        self._trace.record(dst, srcs, ways)


def _whole(key: object, told: str, known: str) -> int:
    """Return a number that counts something; what Python would round is refused."""
    hint = ""
    if isinstance(key, bool):
        hint = f" (a truth value is no number; int({key!r}) is one)"
    else:
        try:
            return operator.index(key)  # type: ignore[arg-type]
        except TypeError:
            if isinstance(key, float):
                hint = " (/ makes fractions, // does not)"
            elif isinstance(key, Reference):
                hint = " (for c in range(len(r.input)) counts chunks)"
    raise BoundsError(f"{told}: got {key!r}; want a whole number, {known}{hint}")


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

    def __setattr__(self, name: str, value: object) -> None:
        """Refuse: what is assigned to is chunks of a buffer, not a name of a rank."""
        told = f"r{int(self)}.{name}"
        if name == INPUT:
            raise ProgramError(
                f"{told} = {value!r}: an input is never written; write to output or "
                f"scratch"
            )
        raise ProgramError(
            f"{told} = {value!r}: this names no chunks; write {told}[:] = ... for all "
            f"of a buffer, or {told}[i] = ... for one chunk"
        )

    if not TYPE_CHECKING:  # else every wrong name would pass

        def __getattr__(self, name: str) -> Any:
            """Refuse a name that there is not, with those that there are."""
            names = ("input", "output", "scratch(name, chunks)", "others", "place")
            near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
            asked = f"; did you mean {near[0]}?" if near else ";"
            raise AttributeError(
                f"a rank has no {name!r}{asked} it has {', '.join(names)}, and is its "
                f"own number"
            )

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
        if self._ranks.trace.scratch.get(name) != chunks or type(chunks) is not int:
            told = f"scratch({name!r}, {chunks!r})"
            chunks = _whole(chunks, told, "1 or more chunks")
            if not _is_name(name) or name in (INPUT, OUTPUT) or chunks < 1:
                raise BoundsError(
                    f"{told}: want an identifier other than input and output, and at "
                    f"least one chunk"
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
            object.__setattr__(rank, "_ranks", self)
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
        if type(index) is not int and type(index) is not Rank:
            index = _whole(index, f"ranks[{index!r}]", f"0 to {len(self._all) - 1}")
        return self._all[int(index) % len(self._all)]

    def __iter__(self) -> Iterator[Rank]:
        """Go through them in order."""
        return iter(self._all)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Name a part of the program, which a schedule may treat differently."""
        if not _is_name(name):
            raise ProgramError(f"phase({name!r}): want an identifier, such as 'gather'")
        before, self.trace.phase = self.trace.phase, name
        try:
            yield
        finally:
            self.trace.phase = before


def _is_name(name: object) -> bool:
    return isinstance(name, str) and _NAME.match(name) is not None
