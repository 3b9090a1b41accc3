"""When flows end: rates of `sharing.py`, or of `compiled.py`, and the next event."""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np

from stretto.fabric.jit import loading
from stretto.topology.traffic.arrays import wider
from stretto.topology.traffic.sharing import LinkShare, Sharing
from stretto.topology.traffic.traffic import Parcel

__all__ = ["CompiledEnds", "Ends", "PlainEnds"]

_End: TypeAlias = "tuple[float, int, Parcel[Any]]"
_MODULE = "stretto.topology.traffic.compiled"


class Ends(Protocol):
    """Flows of parcels, and their ends; ages number events as they are made."""

    def age(self) -> int:
        """Return the age of a new event."""

    def add(self, parcel: Parcel[Any], now: float) -> None:
        """Let a parcel's bytes flow."""

    def remove(self, parcel: Parcel[Any]) -> None:
        """Take them off their links."""

    def settle(self, now: float) -> None:
        """Give every flow its fair rate."""

    def next_us(self, first: float) -> float:
        """Return when the next moment begins, `first` being that of other events.

        A moment may begin with an end that has become void since, and does so for both
        kinds: else times would differ by what is called one moment.
        """

    def due(self, until: float) -> Sequence[_End]:
        """Return the flows that end until then: when, of which age, whose."""


class PlainEnds:
    """Flows as objects, their ends in a heap."""

    def __init__(self, capacity: Sequence[float]) -> None:
        self.capacity = capacity
        self.flows: dict[int, LinkShare] = {}
        """By the identity of a parcel, in the order of their coming."""
        self._sharing = Sharing(capacity)
        self.heap: list[tuple[float, int, LinkShare]] = []
        self.num_events = 0

    @property
    def unsettled(self) -> Collection[LinkShare]:
        """Return flows that have no rate yet."""
        return self._sharing.fresh

    @property
    def touched(self) -> Collection[int]:
        """Return links that flows have left since rates were set."""
        return self._sharing.touched

    def age(self) -> int:
        """Return the age of a new event."""
        self.num_events += 1
        return self.num_events

    def add(self, parcel: Parcel[Any], now: float) -> None:
        """Let a parcel's bytes flow."""
        flow = LinkShare(
            parcel.route.links, parcel.nbytes, parcel.at_most, parcel, parcel.weight
        )
        self.flows[id(parcel)] = flow
        self._sharing.add(flow, now)

    def remove(self, parcel: Parcel[Any]) -> None:
        """Take them off their links."""
        flow = self.flows.pop(id(parcel))
        flow.ends_at = math.nan
        self._sharing.remove(flow)

    def settle(self, now: float) -> None:
        """Give every flow its fair rate."""
        for flow in self._sharing.settle(now):
            heapq.heappush(self.heap, (flow.ends_at, self.age(), flow))

    def next_us(self, first: float) -> float:
        """Return when the next moment begins."""
        return self.heap[0][0] if self.heap else math.inf

    def due(self, until: float) -> list[_End]:
        """Return the flows that end until then."""
        found: list[_End] = []
        while self.heap and self.heap[0][0] <= until:
            when, age, flow = heapq.heappop(self.heap)
            if flow.ends_at == when:  # otherwise its rate has changed since
                flow.ends_at = math.nan
                found.append((when, age, flow.owner))  # type: ignore[arg-type]
        return found


_FLOATS, _NUMBERS, _MEETINGS, _LISTS, _SINGLE = 8, 7, 3, 8, 6
_RATE, _LEFT, _SINCE, _ENDS, _MOST, _WEIGHT, _, _ENDED = range(8)
_HOPS, _NECK, _PLACE, _AGE = 0, 1, 3, 5
_EVENTS, _WIDE = 3, 4
_FEW, _FEW_HOPS = 256, 8


class CompiledEnds:
    """Flows as rows of arrays; `compiled.py` says which."""

    def __init__(self, capacity: Sequence[float]) -> None:
        (self._code,) = loading.load("fast traffic", _MODULE)
        links = len(capacity)
        self._links = np.zeros((4, links))
        self._links[0] = capacity
        self._heads = np.zeros((5, links), np.int64)
        self._heads[:2] = -1
        self._single = np.zeros(_SINGLE, np.int64)
        self._single[_WIDE] = self._wide = _FEW_HOPS
        self._floats = np.zeros((_FLOATS, 0))
        self._numbers = np.zeros((_NUMBERS, 0), np.int64)
        self._meetings = np.zeros((_MEETINGS, 0), np.int64)
        self._lists = np.zeros((_LISTS, 0), np.int64)
        self._times = np.zeros(4 * _FEW)
        self._aged = np.zeros((2, 4 * _FEW), np.int64)
        self._parcels: list[Parcel[Any] | None] = []
        self._free: list[int] = []
        self._changed = False
        self._rows: dict[int, int] = {}
        self._grow(_FEW)

    @classmethod
    def like(cls, plain: PlainEnds) -> CompiledEnds:
        """Return the same flows, at the same rates, of the same ages."""
        made = cls(plain.capacity)
        for flow in plain.flows.values():
            parcel: Any = flow.owner
            row = made._take(parcel, flow.since)
            if flow in plain.unsettled:
                continue
            made._single[0] -= 1  # it is fresh no more
            made._floats[[_RATE, _LEFT, _ENDS], row] = (
                flow.rate,
                flow.left,
                flow.ends_at,
            )
            made._numbers[_NECK, row] = flow.neck
        made._heap(plain)
        made._changed = True
        made._single[_EVENTS] = plain.num_events
        for link in plain.touched:
            made._heads[3, link] = 1
            made._lists[1, made._single[1]] = link
            made._single[1] += 1
        return made

    def _heap(self, plain: PlainEnds) -> None:
        """Take over the ends; void ones, of flows that are gone, get nobody's row."""
        ends = sorted(plain.heap, key=lambda end: end[:2])
        self._grow(2 * len(self._parcels) + len(ends))
        nobody = self._free.pop(0)
        self._floats[_ENDS, nobody] = math.nan
        for i, (when, age, flow) in enumerate(ends):
            row = self._rows.get(id(flow.owner), nobody)
            self._times[i], self._aged[:, i] = when, (age, row)
        self._single[2] = len(ends)

    def age(self) -> int:
        """Return the age of a new event."""
        self._single[_EVENTS] += 1
        return int(self._single[_EVENTS])

    def add(self, parcel: Parcel[Any], now: float) -> None:
        """Let a parcel's bytes flow."""
        self._take(parcel, now)

    def remove(self, parcel: Parcel[Any]) -> None:
        """Take them off their links."""
        row = self._rows.pop(id(parcel))
        self._parcels[row] = None
        self._free.append(row)
        self._code.remove(row, self._arrays)
        self._changed = True

    def settle(self, now: float) -> None:
        """Give every flow its fair rate."""
        if self._changed:
            self._changed = False
            if self._single[2] + len(self._parcels) > len(self._times):
                self._times = np.resize(self._times, 2 * len(self._times))
                self._aged = wider(self._aged, len(self._times))
                self._gather()
            self._code.settle(now, self._arrays)

    def next_us(self, first: float) -> float:
        """Return when the next moment begins."""
        return float(self._code.next_end(first, self._arrays))

    def due(self, until: float) -> list[_End]:
        """Return the flows that end until then."""
        many = self._code.due(until, self._arrays)
        if not many:
            return []
        rows = self._lists[3, :many].tolist()
        floats, numbers, parcels = self._floats, self._numbers, self._parcels
        return [
            (float(floats[_ENDED, r]), int(numbers[_AGE, r]), parcels[r]) for r in rows
        ]

    def _take(self, parcel: Parcel[Any], now: float) -> int:
        """Give a parcel a row, and let it begin."""
        links = parcel.route.links
        if len(links) > self._wide:
            self._widen(2 * len(links))
        if not self._free:
            self._grow(2 * len(self._parcels))
        row = self._free.pop()
        self._parcels[row], self._rows[id(parcel)] = parcel, row
        self._floats[_LEFT, row] = parcel.nbytes
        self._floats[_MOST : _WEIGHT + 1, row] = parcel.at_most, parcel.weight
        self._numbers[_HOPS, row] = len(links)
        first = row * self._wide
        self._meetings[0, first : first + len(links)] = links
        self._code.add(row, now, self._arrays)
        self._changed = True
        return row

    def _grow(self, rows: int) -> None:
        """Make room for more flows."""
        had = len(self._parcels)
        wide = int(self._single[_WIDE])
        lists = np.zeros((_LISTS, max(rows, self._links.shape[1])), np.int64)
        if had:
            lists[:, : self._lists.shape[1]] = self._lists
        self._lists = lists
        self._floats = wider(self._floats, rows)
        self._numbers = wider(self._numbers, rows)
        self._meetings = wider(self._meetings, rows * wide)
        self._free += range(rows - 1, had - 1, -1)
        self._parcels += [None] * (rows - had)
        if len(self._times) < 2 * rows:
            self._times = np.resize(self._times, 2 * rows)
            self._aged = wider(self._aged, 2 * rows)
        self._gather()

    def _widen(self, hops: int) -> None:
        """Make room for longer ways: meetings get new numbers."""
        wide, rows = int(self._single[_WIDE]), len(self._parcels)
        meetings = np.zeros((_MEETINGS, rows, hops), np.int64)
        meetings[:, :, :wide] = self._meetings.reshape(_MEETINGS, rows, wide)
        for part in (meetings[1], meetings[2], self._heads[0], self._heads[1]):
            there = part >= 0
            part[there] = part[there] // wide * hops + part[there] % wide
        self._meetings = meetings.reshape(_MEETINGS, rows * hops)
        self._single[_WIDE] = self._wide = hops
        self._gather()

    def _gather(self) -> None:
        """Keep the arrays as compiled code takes them."""
        self._arrays = (
            self._floats, self._numbers, self._links, self._heads,
            self._meetings, self._lists, self._single, self._times, self._aged,
        )  # fmt: skip
