"""What a call asks for: checked arguments, counts, and whether it is in place.

Everything is checked before anything is sent, and every message says what was given,
what was wanted and what to do. Legend: n ranks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np

from stretto import collectives
from stretto.arrays.operands import CPU, Operand, fresh, operand
from stretto.calls.arguments import read, spell
from stretto.collectives import Operator, Shape, check, storage
from stretto.errors import CallError, UnknownNameError
from stretto.ir import Params, freeze

__all__ = ["Caller", "Exchanged", "Request"]

_MOST_ELEMENTS = 1 << 47


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One call, checked: everything that a plan and its launch need."""

    collective: str
    dtype: str = "uint8"
    device: str = CPU
    op: Operator = Operator.SUM
    counts: tuple[int, ...] = ()
    params: Params = field(default_factory=lambda: freeze({}))
    x: Operand | None = None
    out: Operand | None = None
    in_place: bool = False
    aside: bool = False
    """Whether parts of the output begin elsewhere than those of the input that they
    share memory with: then the call works on a copy of the input."""
    equal: bool = True
    """Whether all parts have one size, so that every rank knows what the others do."""
    idle: Operand | None = None
    """An output that nobody writes: the caller gets zeros."""
    rows: tuple[int, int] = (0, 0)
    """Elements of a part that lie together, in the input and in the output; 0: all."""

    @property
    def operands(self) -> list[Operand]:
        """Return the arrays that the executor touches."""
        return [o for o in (self.x, self.out) if o is not None]

    def deliver(self) -> Any:
        """Return what the caller gets, with staged results copied back."""
        if self.idle is not None:
            self.idle.flat[...] = 0
        result = self.out or self.idle
        if result is None:
            return None
        result.write_back()
        return result.given


def _whole(number: Any) -> int | None:
    """Return a whole number; None: it is none, or one that may change, as a tensor.

    Calls are known by their arguments the next time.
    """
    return int(number) if isinstance(number, Integral) else None


class Exchanged(NamedTuple):
    """What an all_to_all along axes makes."""

    shape: tuple[int, ...]
    rows: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who calls what: the rank, and the words with which errors begin."""

    rank: int
    num_ranks: int
    verb: str
    dtype: str | None = None
    members: tuple[int, ...] = ()
    """The ranks that contribute and receive; none named: all."""

    @property
    def shape(self) -> Shape:
        """Return who takes part, as collectives ask for it."""
        named = {"members": self.members} if self.members else {}
        return Shape(num_ranks=self.num_ranks, params=named)

    @property
    def num_members(self) -> int:
        """Return how many ranks contribute and receive."""
        return len(self.members) or self.num_ranks

    @property
    def place(self) -> int | None:
        """Return this rank's number among the members; None: it only relays."""
        return self.shape.place(self.rank) if self.members else self.rank

    def wrong(self, text: str) -> CallError:
        """Return an error that says who called what."""
        return CallError(f"rank {self.rank}: {self.verb}: {text}")

    def take(self, given: Any, name: str, *, written: bool = False) -> Operand:
        """Return an argument as an operand."""
        if given is None:
            raise self.wrong(f"{name} is None; want an array")
        what = f"rank {self.rank}: {self.verb}({name})"
        return operand(given, what, written=written, dtype=self.dtype)

    def read(self, name: str, given: Any) -> Any:
        """Return the value of an argument beside arrays."""
        return read(f"rank {self.rank}: {self.verb}", name, given)

    def operator(self, op: str | Operator, x: Operand) -> Operator:
        """Return the operator, when it makes sense for the elements."""
        try:
            found = Operator.named(op)
        except UnknownNameError as e:
            raise e.at(f"rank {self.rank}: {self.verb}: op") from None
        try:
            check(found, x.dtype)
        except CallError as e:
            raise self.wrong(str(e)) from None
        return found

    def root(self, root: int) -> Params:
        """Return the parameters of a rooted call."""
        return freeze({"root": self.peer(root, "root")})

    def peer(self, rank: Any, name: str) -> int:
        """Return a rank that exists."""
        number = _whole(rank)
        if number is None or not 0 <= number < self.num_ranks:
            raise self.wrong(
                f"{name}={spell(rank)}; want a rank below {self.num_ranks}"
            )
        return number

    def target(self, x: Operand, given: Any, shape: Sequence[int]) -> Operand:
        """Return the output: what the caller gave, or a new array of that shape.

        Who only relays has none: what it passes is looked at for its size and type.
        """
        if self.place is None:
            return x
        if given is x.given and x.staged:
            out = x
        else:
            given = fresh(x, shape) if given is None else given
            out = self.take(given, "out", written=True)
        if out.dtype != x.dtype:
            raise self.wrong(f"out has {out.dtype}, x has {x.dtype}; want the same")
        if out.device != x.device:
            raise self.wrong(f"out lies on {out.device}, x on {x.device}; want one")
        if out.count != math.prod(shape):
            raise self.wrong(
                f"out has {out.count} elements, shape {out.shape}; want "
                f"{math.prod(shape)}, shape {tuple(shape)}"
            )
        return out

    def divide(self, x: Operand) -> tuple[int, ...]:
        """Return the shape of one rank's part of `x`, along the first axis."""
        n = self.num_members
        if not x.shape or x.shape[0] % n:
            first = x.shape[0] if x.shape else "none"
            raise self.wrong(
                f"x has shape {x.shape}; its first axis, {first}, is not divisible by "
                f"{n} ranks; use {self.verb}_v with counts in elements"
            )
        return (x.shape[0] // n, *x.shape[1:])

    def axis(self, given: int, x: Operand, name: str) -> int:
        """Return an axis of `x`, counted from its first."""
        at = _whole(given)
        if at is not None and at < 0:
            at += len(x.shape)
        if at is None or not 0 <= at < len(x.shape):
            raise self.wrong(
                f"{name}={spell(given)}; x has shape {x.shape}: want an axis below "
                f"{len(x.shape)}"
            )
        return at

    def exchanged(self, x: Operand, split: int, concat: int) -> Exchanged:
        """Return the shape of an all_to_all's result, and how parts lie in arrays.

        `x` is split along one axis; what comes is joined along another.
        """
        n, part = self.num_members, list(x.shape)
        split, concat = self.axis(split, x, "split"), self.axis(concat, x, "concat")
        if part[split] % n:
            raise self.wrong(
                f"x has shape {x.shape}; its axis {split}, {part[split]}, is not "
                f"divisible by {n} ranks"
            )
        part[split] //= n
        result = list(part)
        result[concat] *= n
        rows = [math.prod(part[axis:]) for axis in (split, concat)]
        whole = [math.prod(part[:axis]) == 1 for axis in (split, concat)]
        return Exchanged(
            shape=tuple(result),
            rows=(0 if whole[0] else rows[0], 0 if whole[1] else rows[1]),
        )

    def part(self, counts: Sequence[int]) -> int:
        """Return this rank's of the members' counts; who only relays has none."""
        return 0 if self.place is None else int(counts[self.place])

    def counts(self, given: Any, wanted: int) -> tuple[int, ...]:
        """Return counts of elements, as many as wanted, none negative."""
        try:
            numbers = np.asarray(given)
            whole = numbers.dtype.kind in "iu" or numbers.size == 0
            found = tuple(int(c) for c in numbers.ravel()) if whole else (-1,)
        except (TypeError, ValueError, OverflowError):
            found = (-1,)
        fit = all(0 <= c <= _MOST_ELEMENTS for c in found)
        if len(found) != wanted or not fit:
            raise self.wrong(
                f"counts={spell(given)}; want {wanted} numbers, none negative, "
                "all whole"
            )
        return found

    def request(
        self,
        collective: str,
        x: Operand | None,
        out: Operand | None,
        *,
        counts: tuple[int, ...],
        op: Operator = Operator.SUM,
        params: Params | None = None,
        equal: bool = True,
        idle: Operand | None = None,
    ) -> Request:
        """Return the request, when its arrays do not overlap in a wrong way."""
        one = x or out or idle
        params = freeze({}) if params is None else params
        if self.members:
            params = freeze({**params, "members": self.members})
        if self.place is None:
            x = out = None
        in_place = False
        if x is out and x is not None:
            in_place = True
        elif x is not None and out is not None:
            in_place = self._in_place(collective, x, out, counts, params)
        return Request(
            collective=collective,
            dtype=one.dtype if one else "uint8",
            device=one.device if one else CPU,
            op=op,
            counts=counts,
            params=params,
            x=x,
            out=out,
            in_place=in_place,
            aside=in_place and not self._paired(collective, counts, params),
            equal=equal,
            idle=idle,
        )

    def _paired(self, collective: str, counts: tuple[int, ...], params: Params) -> bool:
        """Return whether each part of the output lies over one of its own size.

        Only then are they the same elements, as plans in place are proved for.
        """
        kind = collectives.get(collective)
        shape = Shape(num_ranks=self.num_ranks, params=params)
        if kind.splits_whole or len(set(counts)) <= 1:
            return True
        if kind.in_place(shape, self.rank) != 0:
            return True  # one is the rank's own part of the other: the same counts
        runs = kind.input_runs(shape, self.rank), kind.output_runs(shape, self.rank)
        inputs, outputs = (
            [first + i for start, stop, first in side for i in range(stop - start)]
            for side in runs
        )
        return all(
            counts[a] == counts[b] for a, b in zip(inputs, outputs, strict=False)
        )

    def _in_place(
        self,
        collective: str,
        x: Operand,
        out: Operand,
        counts: tuple[int, ...],
        params: Params,
    ) -> bool:
        """Return whether output and input are the same memory, as is allowed."""
        (a, a_end), (b, b_end) = x.span, out.span
        if a >= b_end or b >= a_end:
            return False
        kind = collectives.get(collective)
        shape = Shape(num_ranks=self.num_ranks, params=params)
        at = kind.in_place(shape, self.rank)
        own_part = kind.num_parts(shape) == self.num_members and collective != "permute"
        before = sum(counts[: self.place]) * storage(x.dtype).itemsize
        if not own_part:
            right, rule = a == b, "the same memory"
        elif at is None:
            right, rule = b == a + before, "its own part of x"
        else:
            right, rule = a == b + before, "x in its own part of out"
        if not right:
            raise self.wrong(
                f"out overlaps x, {b - a:+d} bytes from its start; want {rule} (in "
                f"place), or no overlap"
            )
        return True
