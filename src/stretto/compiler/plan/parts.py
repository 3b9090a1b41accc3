"""A plan in parts: what it says of all ranks, and what it says of each.

A plan of many ranks is mostly the steps and buffers of others. Whoever runs one rank of
it reads that rank's, and what must be known of the rest: `Reach`.
"""

from __future__ import annotations

import itertools
import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, TypeVar, overload

from stretto.compiler.plan.parser import parse_lanes, parse_plan
from stretto.compiler.plan.plan import BufferRun, Plan, spell_lanes
from stretto.compiler.plan.steps import Move, Space, Step

Lanes: TypeAlias = tuple[tuple[Step, ...], ...]
Runs: TypeAlias = tuple[BufferRun, ...]
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """What a rank must know of the others' steps."""

    packets: bool
    """Whether anything announces itself."""
    bulk: bool
    """Whether anything else is staged."""
    most_lanes: int
    others: frozenset[tuple[int, Space]]
    """Which rank reaches into which of the others' own buffers."""
    writers: Sequence[dict[int, int]]
    """By rank: who writes each of its units that announce themselves."""


def reach(plan: Plan) -> Reach:
    """Return what a rank must know of the others' steps."""
    return plan.ranks.parts.reach if isinstance(plan.ranks, _Each) else _reach(plan)


def _reach(plan: Plan) -> Reach:
    packets = bulk = False
    others: set[tuple[int, Space]] = set()
    writers: list[dict[int, int]] = [{} for _ in range(plan.num_ranks)]
    for rank, _, _, step in plan.steps():
        if not isinstance(step, Move):
            continue
        for loc in (*step.dsts, *step.srcs):
            if loc.space is not Space.STAGE:
                if loc.rank != rank:
                    others.add((rank, loc.space))
            elif loc.packets:
                packets = True
            else:
                bulk = True
        for dst in step.dsts:
            if dst.packets:
                for unit in range(dst.pos, dst.pos + step.stop - step.start):
                    writers[dst.rank][unit] = rank
    return Reach(
        packets=packets,
        bulk=bulk,
        most_lanes=max(map(len, plan.ranks)),
        others=frozenset(others),
        writers=tuple(writers),
    )


def pack(plan: Plan) -> bytes:
    """Return a plan as bytes of which `unpack` reads as much as is asked for."""
    found = _reach(plan)
    said = zip(plan.ranks, found.writers, plan.inputs, plan.outputs, strict=True)
    parts = [
        _packed(["\n".join(spell_lanes(rank, lanes)), list(writers.items()), *runs])
        for rank, (lanes, writers, *runs) in enumerate(said)
    ]
    n = plan.num_ranks
    bare = replace(
        plan, ranks=(((),),) * n, inputs=((),) * n, outputs=((),) * n, atoms=()
    )
    head = {
        "digest": plan.digest,
        "plan": str(bare),
        "atoms": plan.atoms,
        "places": [(len(list(some)), p) for p, some in itertools.groupby(plan.places)],
        "packets": found.packets,
        "bulk": found.bulk,
        "most_lanes": found.most_lanes,
        "others": sorted((rank, int(space)) for rank, space in found.others),
        "sizes": list(map(len, parts)),
    }
    first = _packed(head)
    return b"".join([len(first).to_bytes(8, "little"), first, *parts])


def _packed(said: object) -> bytes:
    return zlib.compress(json.dumps(said).encode(), 1)


def unpack(data: bytes) -> Plan:
    """Return the plan that was packed; what is none raises whatever it meets."""
    start = 8 + int.from_bytes(data[:8], "little")
    head: dict[str, Any] = json.loads(zlib.decompress(data[8:start]))
    ends = list(itertools.accumulate(head["sizes"], initial=start))
    if ends[-1] != len(data):
        raise ValueError(f"{len(data)} bytes; want {ends[-1]}")
    parts = _Parts(tuple(data[a:b] for a, b in itertools.pairwise(ends)), head)
    runs = itertools.starmap(itertools.repeat, ((p, n) for n, p in head["places"]))
    places = tuple(itertools.chain.from_iterable(runs))
    plan = replace(
        parse_plan(head["plan"]), ranks=_Each(parts, lambda one: one.lanes),
        inputs=_Each(parts, lambda one: one.inputs),
        outputs=_Each(parts, lambda one: one.outputs),
        atoms=tuple(map(tuple, head["atoms"])), places=places,
    )  # fmt: skip
    if len(parts) != plan.num_ranks:
        raise ValueError(f"{len(parts)} parts; want {plan.num_ranks}")
    plan.known_as(str(head["digest"]))
    return plan


@dataclass(frozen=True, slots=True)
class _Part:
    """What a plan says of one rank."""

    lanes: Lanes
    writers: dict[int, int]
    """Who writes its units."""
    inputs: Runs
    outputs: Runs


class _Parts:
    """What a plan says of each rank, read when it is asked for."""

    def __init__(self, packed: tuple[bytes, ...], head: dict[str, Any]) -> None:
        self._packed = packed
        self._read: dict[int, _Part] = {}
        self.reach = Reach(
            packets=head["packets"],
            bulk=head["bulk"],
            most_lanes=head["most_lanes"],
            others=frozenset((rank, Space(space)) for rank, space in head["others"]),
            writers=_Each(self, lambda one: one.writers),
        )

    def __len__(self) -> int:
        return len(self._packed)

    def part(self, rank: int) -> _Part:
        """Return what is said of a rank."""
        found = self._read.get(rank)
        if found is None:
            text, writers, *runs = json.loads(zlib.decompress(self._packed[rank]))
            inputs, outputs = (tuple(BufferRun(*one) for one in some) for some in runs)
            found = self._read[rank] = _Part(
                parse_lanes(rank, text), dict(writers), inputs, outputs
            )
        return found


class _Each(Sequence[T]):
    """Something of each rank, as a tuple has it."""

    def __init__(self, parts: _Parts, what: Callable[[_Part], T]) -> None:
        self.parts, self._what = parts, what

    def __len__(self) -> int:
        return len(self.parts)

    @overload
    def __getitem__(self, at: int) -> T: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[T, ...]: ...

    def __getitem__(self, at: int | slice) -> T | tuple[T, ...]:
        ranks = range(len(self.parts))[at]
        if isinstance(ranks, int):
            return self._what(self.parts.part(ranks))
        return tuple(self._what(self.parts.part(rank)) for rank in ranks)

    def __iter__(self) -> Iterator[T]:
        return (self._what(self.parts.part(rank)) for rank in range(len(self.parts)))

    def __eq__(self, other: object) -> bool:
        return tuple(self) == (tuple(other) if isinstance(other, _Each) else other)

    def __hash__(self) -> int:
        return hash(tuple(self))
