"""Puts on their way to other hosts: as late and as disordered as is allowed.

A put takes its source's bytes when it lands, not when it is issued: whoever stores over
the source too early spoils it. It lands at a random moment, in any order, and at the
latest when its rank sees a later signal that releases, sent to it by the same lane. No
other signal says anything about it. A rank leaves once its own sources have been read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import TypeAlias

from stretto.program.elements import Array

__all__ = ["Flights"]

_Way: TypeAlias = tuple[int, int, int, int]
"""From a rank's lane to a rank, of a block."""
_Channel: TypeAlias = tuple[int, int, int, int, int]
"""From a rank's lane to a rank's lane, of a block."""


class _Put:
    __slots__ = ("rank", "source", "target")

    def __init__(self, rank: int, source: Array, target: Array) -> None:
        self.rank, self.source, self.target = rank, source, target

    def land(self) -> None:
        self.target[:] = self.source


class Flights:
    """All puts to other hosts that have not landed."""

    def __init__(self) -> None:
        self._flying: dict[_Way, list[_Put]] = defaultdict(list)
        self._marked: dict[_Channel, dict[int, list[_Put]]] = defaultdict(dict)
        """By channel and flag, what lands before that flag is seen."""

    def issue(self, way: _Way, source: Array, target: Array) -> None:
        """Let a put begin."""
        self._flying[way].append(_Put(way[0], source, target))

    def mark(self, channel: _Channel, flag: int) -> None:
        """Say that whoever sees this flag has all that was put there before it."""
        rank, lane, other, _, block = channel
        self._marked[channel][flag] = list(self._flying[rank, lane, other, block])

    def land_before(self, channel: _Channel, flag: int) -> None:
        """Let everything land that must have when this flag is seen."""
        rank, lane, other, _, block = channel
        flying = self._flying[rank, lane, other, block]
        for put in self._marked[channel].pop(flag, ()):
            if put in flying:
                put.land()
                flying.remove(put)

    def land_one(self, random: Callable[[], float]) -> bool:
        """Let some put land, whichever; return whether there was one."""
        flying = [puts for puts in self._flying.values() if puts]
        if not flying:
            return False
        puts = flying[int(random() * len(flying))]
        puts.pop(int(random() * len(puts))).land()
        return True

    def leave(self, rank: int) -> None:
        """Read what a rank still has to send: its caller may now change it."""
        for puts in self._flying.values():
            for put in puts:
                if put.rank == rank:
                    put.source = put.source.copy()
