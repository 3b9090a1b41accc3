"""From a verb's description and what a caller gave to a request, all of it checked.

Everything is checked before anything is sent, and every message says what was given,
what was wanted and what to do. Legend: n ranks, or the members among them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stretto.arrays import CPU, Operand, fresh, operand
from stretto.errors import CallError, UnknownNameError
from stretto.executors import Call
from stretto.program import collectives
from stretto.program.collectives import Operator, Shape, check, storage
from stretto.program.ir import Params, freeze
from stretto.runtime.calls.requests.arguments import as_whole, read, spell
from stretto.runtime.calls.requests.axes import exchanged
from stretto.runtime.calls.requests.layout import READ_OF, Seen
from stretto.runtime.calls.requests.overlap import in_place, parts_match
from stretto.runtime.calls.requests.verb import AS_USUAL, Content, SumOptions, Verb
from stretto.runtime.choice.beside import Beside
from stretto.runtime.choice.select import Pin, completed, members_of_pin

_MOST_ELEMENTS = 1 << 47


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One call, checked: everything that a plan and its launch need."""

    collective: str
    call: Call
    device: str = CPU
    params: Params = field(default_factory=lambda: freeze({}))
    x: Operand | None = None
    out: Operand | None = None
    in_place: bool = False
    equal: bool = True
    """Whether all parts have one size, so that every rank knows what the others do."""
    idle: Operand | None = None
    """An output that nobody writes: the caller gets zeros."""
    pin: Pin = None
    stream: Any = None
    sums: SumOptions = AS_USUAL


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who calls what: the rank, and the words with which errors begin."""

    rank: int
    num_ranks: int
    verb: str
    dtype: str | None = None
    members: tuple[int, ...] = ()
    """The ranks that contribute and receive; none named: all."""
    seen: Seen | None = None
    """What its arrays look like, where that was read."""
    pin: Pin = None
    stream: Any = None
    sums: SumOptions = AS_USUAL

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
        found = None if self.seen is None else self.seen[0][READ_OF[name]]
        return operand(
            given,
            f"rank {self.rank}: {self.verb}({name})",
            written=written,
            dtype=self.dtype,
            registered=None if found is None else not found[-1],
        )

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

    def peer(self, rank: Any, name: str) -> int:
        """Return a rank that exists."""
        number = as_whole(rank)
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
        if len(found) != wanted or not all(0 <= c <= _MOST_ELEMENTS for c in found):
            want = f"{wanted} numbers, none negative, all whole"
            raise self.wrong(f"counts={spell(given)}; want {want}")
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
        rows: tuple[int, int] = (0, 0),
    ) -> Request:
        """Return the request, when its arrays do not overlap in a wrong way."""
        one = x or out or idle
        params = freeze({}) if params is None else params
        if self.members:
            params = freeze({**params, "members": self.members})
        if self.place is None:
            x = out = None
        over = x is not None and x is out
        shape = Shape(num_ranks=self.num_ranks, params=params)
        if x is not None and out is not None and not over:
            try:
                over = in_place(collective, shape, self.rank, x, out, counts)
            except CallError as e:
                raise self.wrong(str(e)) from None
        device = one.device if one else CPU
        if self.stream is not None and device == CPU:
            what = f"stream={self.stream!r} with arrays on the CPU, where calls block"
            raise self.wrong(f"{what}; leave it out")
        call = Call(
            dtype=one.dtype if one else "uint8",
            op=op,
            counts=counts,
            rows=rows,
            aside=over and not parts_match(collective, shape, self.rank, counts),
            beside=isinstance(self.pin, Beside),
        )
        return Request(
            collective=collective,
            call=call,
            device=device,
            params=params,
            x=x,
            out=out,
            in_place=over,
            equal=equal,
            idle=idle,
            pin=self.pin,
            stream=self.stream,
            sums=self.sums,
        )


def examined(
    calls: Any, seen: Seen | None, verb: Verb, values: Sequence[Any]
) -> Request:
    """Return the request of a verb's call, of its arguments in their order."""
    given = dict(zip(verb.parameters, values, strict=True))
    pin = given.get("algorithm") and completed(given["algorithm"], verb.collective)
    who = Caller(
        rank=calls.rank,
        num_ranks=calls.num_ranks,
        verb=verb.name,
        dtype=given.get("dtype"),
        members=() if not pin or "pairs" in given else members_of_pin(pin),
        seen=seen,
        pin=pin,
        stream=given.get("stream"),
        sums=SumOptions(given.get("bits"), given.get("wire")),
    )
    if verb.x is Content.NOTHING:
        return who.request(verb.collective, None, None, counts=())
    if "pairs" in given:
        return _permutation(who, given)
    if "split" in given:
        return _exchange(who, given)
    kind = collectives.get(verb.collective)
    root = given.get("root", who.rank)
    params = freeze({"root": who.peer(root, "root")}) if kind.rooted else None
    source = _source(verb, who, given, root)
    sizes = _sizes(verb, who, given, source)
    target = _target(verb, who, given, source, sizes, root)
    one = source or target
    assert one is not None, "a rank has an input or an output"
    op = who.operator(given["op"], one) if kind.reduces else Operator.SUM
    at_root = root == who.rank
    return who.request(
        verb.collective,
        source,
        target,
        counts=sizes[0] if sizes else _equal_counts(verb, who, one, at_root),
        op=op,
        params=params,
        equal=not verb.unequal,
    )


def _source(
    verb: Verb, who: Caller, given: Mapping[str, Any], root: int
) -> Operand | None:
    """Return the input; the result replaces it where a call has no other output."""
    at_root = root == who.rank
    if verb.x_at_root and not at_root:
        return None
    replaced = verb.x is verb.out is Content.WHOLE and given["out"] is None
    written = replaced and (at_root or not verb.out_at_root)
    return who.take(given["x"], "x", written=written)


def _sizes(
    verb: Verb, who: Caller, given: Mapping[str, Any], source: Operand | None
) -> tuple[tuple[int, ...], int] | None:
    """Return the counts of unequal parts, and of the output, when the input fits."""
    if not verb.unequal:
        return None
    n, has = who.num_members, None if source is None else source.count
    if verb.x is verb.out is Content.PARTS:
        counts = who.counts(given["counts"], n * n)
        matrix = np.reshape(counts, (n, n))
        sent, received = (who.part(matrix.sum(axis=axis)) for axis in (1, 0))
        if sent != has:
            raise who.wrong(f"counts sum to {sent}; x has {has} elements")
        return counts, received
    counts = who.counts(given["counts"], n)
    if verb.x is Content.PART:
        if who.part(counts) != has:
            raise who.wrong(
                f"counts[{who.place}] is {who.part(counts)}; x has {has} elements"
            )
        return counts, sum(counts)
    if has is not None and who.place is not None and sum(counts) != has:
        raise who.wrong(f"counts sum to {sum(counts)}; x has {has}")
    return counts, who.part(counts)


def _target(
    verb: Verb,
    who: Caller,
    given: Mapping[str, Any],
    source: Operand | None,
    sizes: tuple[tuple[int, ...], int] | None,
    root: int,
) -> Operand | None:
    """Return the output: what was given, the input itself, or a new array."""
    if verb.out_at_root and root != who.rank:
        return None
    out, in_x = given["out"], verb.x is verb.out is Content.WHOLE
    if source is None:
        name, array = ("x", given["x"]) if in_x and out is None else ("out", out)
        if sizes is not None and array is None:
            if given["dtype"] is None:
                raise who.wrong("neither out nor dtype; want one, to know the elements")
            array = np.empty(sizes[1], storage(given["dtype"]))
        target = who.take(array, name, written=True)
        if sizes is not None and target.count != sizes[1]:
            raise who.wrong(f"out has {target.count} elements; want {sizes[1]}")
        return target
    if in_x and out is None:
        return source
    if sizes is not None:
        return who.target(source, out, (sizes[1],))
    if verb.out is Content.PART:
        return who.target(source, out, who.divide(source))
    many = (who.num_members,) if verb.out is Content.PARTS else ()
    return who.target(source, out, (*many, *source.shape))


def _equal_counts(
    verb: Verb, who: Caller, one: Operand, at_root: bool
) -> tuple[int, ...]:
    """Return the counts of equal parts; `one` is the input, or else the output."""
    if verb.x is verb.out is Content.WHOLE:
        return (one.count,)
    holds = verb.out if verb.x_at_root and not at_root else verb.x
    count = one.count if holds is Content.PART else math.prod(who.divide(one))
    return (count,) * who.num_members


def _exchange(who: Caller, given: Mapping[str, Any]) -> Request:
    """Return an all_to_all: each rank's part along one axis, joined along another."""
    split, concat = given["split"], given["concat"]
    source = who.take(given["x"], "x")
    if not split and not concat:
        who.divide(source)
    try:
        shape, rows = exchanged(source.shape, who.num_members, split, concat)
    except CallError as e:
        raise who.wrong(str(e)) from None
    target = who.target(source, given["out"], shape)
    n = who.num_members
    counts = (target.count // n,) * n**2
    moves = any(rows)
    if moves and who.members:
        what = f"axes that move, by an algorithm among {who.members}"
        raise who.wrong(f"{what}; want split=0 and concat=0")
    rows = rows if source.count else (0, 0)
    request = who.request("all_to_all", source, target, counts=counts, rows=rows)
    if moves and request.in_place:
        raise who.wrong("out overlaps x, with axes that move; want memory of its own")
    return request


def _permutation(who: Caller, given: Mapping[str, Any]) -> Request:
    """Return a permute: who sends to whom; ranks that nobody targets get zeros."""
    x, out = given["x"], given["out"]
    pairs = who.read("pairs", given["pairs"])
    moves = tuple((who.peer(a, "source"), who.peer(b, "target")) for a, b in pairs)
    for role, side in (("source", 0), ("target", 1)):
        if len({pair[side] for pair in moves}) < len(moves):
            raise who.wrong(f"pairs={moves}: a rank is a {role} more than once")
    source = who.take(x, "x", written=out is x and out is not None)
    target = who.target(source, out, source.shape)
    targeted = any(b == who.rank for _, b in moves)
    return who.request(
        "permute",
        source if any(a == who.rank for a, _ in moves) else None,
        target if targeted else None,
        counts=(source.count,) * who.num_ranks,
        params=freeze({"pairs": moves}),
        idle=None if targeted else target,
    )
