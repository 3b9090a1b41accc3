"""A plan in parts: what it says of all ranks, and each rank's steps by themselves.

A plan of many ranks is mostly the steps of others. Whoever runs one rank of it reads
that rank's, and what must be known of the rest: `Reach`.
"""

from __future__ import annotations

import itertools
import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, overload

from stretto.plan.parser import parse_lanes, parse_plan
from stretto.plan.plan import Plan, spell_lanes
from stretto.plan.steps import Move, Space, Step

__all__ = ["Reach", "pack", "reach", "unpack"]

Lanes: TypeAlias = tuple[tuple[Step, ...], ...]


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
    return plan.ranks.reach if isinstance(plan.ranks, _Parts) else _reach(plan)


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
    said = zip(plan.ranks, found.writers, strict=True)
    parts = [
        _packed(["\n".join(spell_lanes(rank, lanes)), list(writers.items())])
        for rank, (lanes, writers) in enumerate(said)
    ]
    head = {
        "digest": plan.digest,
        "plan": str(replace(plan, ranks=(((),),) * plan.num_ranks)),
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
    places = tuple(place for many, place in head["places"] for _ in range(many))
    plan = replace(parse_plan(head["plan"]), ranks=parts, places=places)
    if len(parts) != plan.num_ranks:
        raise ValueError(f"{len(parts)} parts; want {plan.num_ranks}")
    plan.known_as(str(head["digest"]))
    return plan


class _Parts(Sequence[Lanes]):
    """The steps of all ranks, each rank's read when it is asked for."""

    def __init__(self, packed: tuple[bytes, ...], head: dict[str, Any]) -> None:
        self._packed = packed
        self._read: dict[int, tuple[Lanes, dict[int, int]]] = {}
        self.reach = Reach(
            packets=head["packets"],
            bulk=head["bulk"],
            most_lanes=head["most_lanes"],
            others=frozenset((rank, Space(space)) for rank, space in head["others"]),
            writers=_Writers(self),
        )

    def __len__(self) -> int:
        return len(self._packed)

    @overload
    def __getitem__(self, at: int) -> Lanes: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[Lanes, ...]: ...

    def __getitem__(self, at: int | slice) -> Lanes | tuple[Lanes, ...]:
        ranks = range(len(self._packed))[at]
        if isinstance(ranks, int):
            return self.part(ranks)[0]
        return tuple(self.part(rank)[0] for rank in ranks)

    def __iter__(self) -> Iterator[Lanes]:
        return (self.part(rank)[0] for rank in range(len(self._packed)))

    def __eq__(self, other: object) -> bool:
        return tuple(self) == (tuple(other) if isinstance(other, _Parts) else other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def part(self, rank: int) -> tuple[Lanes, dict[int, int]]:
        """Return the steps of a rank, and who writes its units."""
        found = self._read.get(rank)
        if found is None:
            text, writers = json.loads(zlib.decompress(self._packed[rank]))
            found = self._read[rank] = parse_lanes(rank, text), dict(writers)
        return found


class _Writers(Sequence[dict[int, int]]):
    """Who writes the units of each rank, read when it is asked for."""

    def __init__(self, parts: _Parts) -> None:
        self._parts = parts

    def __len__(self) -> int:
        return len(self._parts)

    @overload
    def __getitem__(self, at: int) -> dict[int, int]: ...
    @overload
    def __getitem__(self, at: slice) -> list[dict[int, int]]: ...

    def __getitem__(self, at: int | slice) -> dict[int, int] | list[dict[int, int]]:
        ranks = range(len(self._parts))[at]
        if isinstance(ranks, int):
            return self._parts.part(ranks)[1]
        return [self._parts.part(rank)[1] for rank in ranks]
