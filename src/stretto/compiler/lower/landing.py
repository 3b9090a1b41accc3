"""Keep the sources of far puts until they have landed, where a call is in place.

A put to another host is under way until its data have landed. Before that its source
must not be stored over. Staging is stored once in an epoch, and used again when all
have read; but an input that lies under the output is stored over in the same epoch.
Where no signal says in time that the put has landed, the input is copied to staging
first, and put from there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from stretto.compiler.lower.in_place import copies_onto_itself, under
from stretto.compiler.lower.placement import Placement
from stretto.compiler.plan import Loc, Move, Space
from stretto.program.collectives import Collective, Shape

Moves: TypeAlias = tuple[tuple[int, Move], ...]
_Place: TypeAlias = tuple[int, Space, int]


def keep_sources(
    placement: Placement,
    moves: Moves,
    units: list[int],
    kind: Collective,
    shape: Shape,
    hosts: tuple[int, ...],
) -> tuple[Moves, list[int]]:
    """Return the moves, with copies of inputs that are stored over while being put."""
    puts = {
        index
        for index, (rank, move) in enumerate(moves)
        if move.srcs[0].space is Space.INPUT
        and any(hosts[dst.rank] != hosts[rank] for dst in move.dsts)
    }
    if not puts:
        return moves, units
    over = [under(placement, kind, shape, rank) for rank in range(shape.num_ranks)]
    kept: dict[tuple[int, int, int], Loc] = {}
    saved: list[tuple[int, Move]] = []
    changed, units = list(moves), list(units)
    for index in sorted(_Walk(moves, puts, over).stored_too_soon()):
        rank, move = moves[index]
        source, width = move.srcs[0], move.stop - move.start
        key = (rank, source.pos, width)
        if key not in kept:
            kept[key] = Loc(rank, Space.STAGE, units[rank])
            units[rank] += width
            saved.append((rank, Move((kept[key],), (source,), move.start, move.stop)))
        changed[index] = rank, move._replace(srcs=(kept[key],))
    return (*saved, *changed), units


class _Walk:
    """Follows what each rank knows of the others, from what it reads."""

    def __init__(
        self, moves: Moves, puts: set[int], over: list[dict[int, int]]
    ) -> None:
        n = len(over)
        self.moves, self.puts, self.over = moves, puts, over
        self.clocks: NDArray[np.int64] = np.zeros((n, n), dtype=np.int64)
        self.told: dict[_Place, NDArray[np.int64]] = {}
        """What whoever reads a place knows then."""
        self.brought: dict[_Place, int] = {}
        """The put that stored a place."""
        self.landed: dict[int, tuple[int, int]] = {}
        """By put: who has read what it brought, and when."""
        self.reading: dict[tuple[int, int], list[int]] = defaultdict(list)
        """By rank and position of its input: the puts from there."""

    def stored_too_soon(self) -> Iterator[int]:
        """Yield the puts whose source may be stored over before they have landed."""
        for index, (rank, move) in enumerate(self.moves):
            clock, width = self.clocks[rank], range(move.stop - move.start)
            clock[rank] = index + 1
            for src in move.srcs:
                for i in width:
                    self._read(rank, clock, (src.rank, src.space, src.pos + i), index)
            for dst in move.dsts:
                itself = copies_onto_itself(rank, self.over[rank], move, dst)
                if dst.rank == rank and dst.space is Space.OUTPUT and not itself:
                    yield from self._store(rank, clock, dst, width)
            after = clock.copy()
            for dst in move.dsts:
                for i in width:
                    self.told[dst.rank, dst.space, dst.pos + i] = after
                    if index in self.puts:
                        self.brought[dst.rank, dst.space, dst.pos + i] = index
            if index in self.puts:
                for i in width:
                    self.reading[rank, move.srcs[0].pos + i].append(index)

    def _read(
        self, rank: int, clock: NDArray[np.int64], place: _Place, index: int
    ) -> None:
        if place in self.told:
            np.maximum(clock, self.told[place], out=clock)
        if place in self.brought:
            self.landed.setdefault(self.brought[place], (rank, index + 1))

    def _store(
        self, rank: int, clock: NDArray[np.int64], dst: Loc, width: range
    ) -> Iterator[int]:
        for i in width:
            below = self.over[rank].get(dst.pos + i)
            if below is None:
                continue
            for put in self.reading.pop((rank, below), ()):
                reader, when = self.landed.get(put, (rank, len(self.moves) + 1))
                if clock[reader] < when:
                    yield put
