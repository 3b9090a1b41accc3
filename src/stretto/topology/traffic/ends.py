"""When flows end: rates of `sharing.py`, or of `compiled.py`, and the next event."""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Sequence
from operator import itemgetter
from typing import Any, Protocol, TypeAlias

import numpy as np

from stretto.fabric.jit import loading
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

    def next_us(self) -> float:
        """Return when the next flow ends, as was known when all was settled."""

    def due(self, until: float) -> Sequence[_End]:
        """Return the flows that end until then: when, of which age, whose.

        `until` is within one moment of the next end; all that are returned are removed
        before anything is settled again.
        """


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
        self._sharing.remove(self.flows.pop(id(parcel)))

    def settle(self, now: float) -> None:
        """Give every flow its fair rate."""
        for flow in self._sharing.settle(now):
            flow.age = self.age()
            heapq.heappush(self.heap, (flow.ends_at, flow.age, flow))

    def next_us(self) -> float:
        """Return when the next flow ends; ends that have become void are dropped."""
        heap = self.heap
        while heap and heap[0][1] != heap[0][2].age:
            heapq.heappop(heap)
        return heap[0][0] if heap else math.inf

    def due(self, until: float) -> list[_End]:
        """Return the flows that end until then."""
        found: list[_End] = []
        while self.heap and self.heap[0][0] <= until:
            when, age, flow = heapq.heappop(self.heap)
            if flow.age == age:  # otherwise its rate has changed since
                found.append((when, age, flow.owner))  # type: ignore[arg-type]
        return found


_LEFT, _SINCE, _WEIGHT, _MOST, _LIMIT, _AGE, _FIRST, _HOPS, _FIELDS = range(9)
"""Where these are in a row of a flow, and how long that is."""
_FRESH, _GONE, _TOUCH, _DUE, _LISTS = 0, 1, 2, 8, 11
_NUM_FRESH, _NUM_ADMITTED, _NUM_GONE, _NUM_TOUCHED, _NUM_DUE, _EVENTS, _USED = range(7)
_BLOCK, _FEW, _PART = 32, 256, 8
_when = itemgetter(0, 1)


class CompiledEnds:
    """Flows as rows of arrays; `compiled.py` says which.

    Who comes and goes is only noted: one call of compiled code takes them on and off
    their links, settles, and finds what ends next.
    """

    def __init__(self, capacity: Sequence[float]) -> None:
        (self._code,) = loading.load("fast traffic", _MODULE)
        self._settle = self._code.direct(self._code.settle)
        links = len(capacity)
        self._links = np.zeros(links, self._code.LINK)
        self._links["capacity"] = capacity
        self._links["slot"] = -1
        self._flows = np.zeros(0, self._code.FLOW)
        self._shares = np.zeros(0, self._code.SHARE)
        self._rooms = np.zeros(links, self._code.ROOM)
        self._widest = 4
        self._levels, self._ends = _blocks(links), _blocks(0)
        self._lists: Any = None
        self._parts: Any = None
        self._ways = np.zeros(_FEW, np.uint32)
        self._way: dict[tuple[int, ...], int] = {}
        """Where in these the links of a route begin."""
        self._single = np.zeros(8, np.int64)
        self._parcels: list[Parcel[Any] | None] = []
        self._rows: dict[int, int] = {}
        self._free: list[int] = []
        self._gone: list[int] = []
        """Rows that are free once they are off their links."""
        self._changed = False
        self._next = math.inf
        self._num_events = self._num_hops = 0
        self._lay()
        self._grow(_FEW)

    @classmethod
    def like(cls, plain: PlainEnds) -> CompiledEnds:
        """Return the same flows, at the same rates, of the same ages."""
        made = cls(plain.capacity)
        for flow in plain.flows.values():
            made.add(flow.owner, flow.since)  # type: ignore[arg-type]
        while not made._code.admit(made._address):
            made._lay()
        fresh = [made._rows[id(flow.owner)] for flow in plain.unsettled]
        made._single[[_NUM_FRESH, _NUM_ADMITTED]] = len(fresh)
        made._lists[_FRESH, : len(fresh)] = fresh
        for flow in plain.flows.values():
            row = made._rows[id(flow.owner)]
            into = made._flows[row]
            into["left"], into["age"] = flow.left, flow.age
            share = made._shares[row]
            share["rate"], share["share"] = flow.rate, flow.rate / flow.weight
            share["neck"] = flow.neck
            made._ends[row] = flow.ends_at
        touched = list(plain.touched)
        made._links["touched"][touched] = 1
        made._lists[_TOUCH, : len(touched)] = touched
        made._single[_NUM_TOUCHED] = len(touched)
        made._num_events = plain.num_events
        made._changed = True
        return made

    def age(self) -> int:
        """Return the age of a new event."""
        self._num_events += 1
        return self._num_events

    def add(self, parcel: Parcel[Any], now: float) -> None:
        """Let a parcel's bytes flow."""
        links = parcel.route.links
        way = self._way.get(links)
        if way is None:
            way = self._learn(links)
        if not self._free:
            self._grow(2 * len(self._parcels))
        row = self._free.pop()
        self._parcels[row], self._rows[id(parcel)] = parcel, row
        at, floats = row * _FIELDS, self._as_floats
        floats[at + _LEFT], floats[at + _WEIGHT] = parcel.nbytes, parcel.weight
        floats[at + _MOST], floats[at + _SINCE] = parcel.at_most, now
        floats[at + _LIMIT] = parcel.at_most / parcel.weight
        self._as_words[at + _FIRST], self._as_words[at + _HOPS] = way, len(links)
        self._note(_FRESH, _NUM_FRESH, row)

    def remove(self, parcel: Parcel[Any]) -> None:
        """Take them off their links."""
        row = self._rows.pop(id(parcel))
        self._parcels[row] = None
        self._gone.append(row)
        self._note(_GONE, _NUM_GONE, row)

    def settle(self, now: float) -> None:
        """Give every flow its fair rate."""
        if not self._changed:
            return
        self._words[_EVENTS] = self._num_events
        while (first := self._settle(now, self._address)) < 0:
            self._lay()
        self._num_events = self._words[_EVENTS]
        self._free += self._gone
        self._gone.clear()
        self._next, self._changed = first, False

    def next_us(self) -> float:
        """Return when the next flow ends."""
        return self._next

    def due(self, until: float) -> list[_End]:
        """Return the flows that end until then."""
        if until < self._next:
            return []
        self._next = math.inf  # until all is settled again
        many, ends, parcels = self._words[_NUM_DUE], self._ends, self._parcels
        rows = self._lists[_DUE, :many].tolist()
        found: list[Any] = [
            (when, self._as_words[row * _FIELDS + _AGE], parcels[row])
            for row, when in zip(rows, ends[rows].tolist(), strict=True)
            if when <= until
        ]
        if many > 1:
            found.sort(key=_when)
        return found

    def _note(self, which: int, count: int, row: int) -> None:
        """Put a row on a list for the next time that all is settled."""
        many = self._words[count]
        self._flat_lists[which * self._lists.shape[1] + many] = row
        self._words[count] = many + 1
        self._changed = True

    def _learn(self, links: tuple[int, ...]) -> int:
        """Keep the links of a route; return where."""
        first = self._num_hops
        self._num_hops += len(links)
        if len(links) > self._widest:
            self._widest = len(links)
            self._slots = np.zeros((len(self._parcels), self._widest), np.uint32)
            self._gather()
        if self._num_hops >= len(self._ways):
            ways = np.zeros(2 * self._num_hops, np.uint32)
            ways[:first] = self._ways[:first]
            self._ways = ways
            self._gather()
        self._ways[first : self._num_hops] = links
        self._way[links] = first
        return first

    def _grow(self, rows: int) -> None:
        """Make room for more flows."""
        had = len(self._parcels)
        flows = np.zeros(rows, self._code.FLOW)
        flows[:had] = self._flows
        self._flows = flows
        shares = np.zeros(rows, self._code.SHARE)
        shares[:had] = self._shares
        self._shares = shares
        self._mine = np.zeros(rows + 1, self._code.MINE)
        self._slots = np.zeros((rows, self._widest), np.uint32)
        ends = _blocks(rows)
        ends[:had] = self._ends[:had]
        self._ends = ends
        lists = np.zeros((_LISTS, max(rows, len(self._links)) + 1), np.uint32)
        if had:
            lists[:, : self._lists.shape[1]] = self._lists
        self._lists = lists
        self._free += range(rows - 1, had - 1, -1)
        self._parcels += [None] * (rows - had)
        self._gather()

    def _lay(self) -> None:
        """Give every link a part with room for more flows than are on it."""
        many = self._links["many"]
        places = np.maximum(2 * many, _PART).astype(np.int64)
        starts = np.cumsum(places) - places
        parts = np.zeros((2, 3 * int(places.sum())), np.uint32)
        for link in np.flatnonzero(many):
            start, first, last = starts[link], self._links["start"][link], many[link]
            parts[0, start : start + last] = self._parts[0, first : first + last]
        self._parts = parts
        self._links["start"], self._links["places"] = starts, places
        self._single[_USED] = places.sum()
        if self._parcels:
            self._gather()

    def _gather(self) -> None:
        """Keep the arrays as compiled code takes them, and as Python writes them."""
        bits = self._levels.view(np.int64), self._ends.view(np.int64)
        self._arrays = (
            self._flows, self._shares, self._links, self._mine, self._rooms,
            self._ways, self._slots, self._parts, self._levels, bits[0],
            self._ends, bits[1], self._lists, self._single,
        )  # fmt: skip
        # an array takes seven words, and two more for each further dimension
        self._kept = np.zeros(9 * len(self._arrays), np.int64)
        self._address = self._kept.ctypes.data
        self._code.keep(self._address, self._arrays)
        self._as_floats: Any = self._flows.view(np.float64).data
        self._as_words: Any = self._flows.view(np.int64).data
        self._flat_lists: Any = self._lists.reshape(-1).data
        self._words: Any = self._single.data


def _blocks(many: int) -> Any:
    """Return as many infinities, or some more, and words behind: see `compiled.py`."""
    blocks = -(-many // _BLOCK)
    values = np.full(blocks * (_BLOCK + 1) + 1, math.inf)
    values.view(np.int64)[blocks * _BLOCK :] = -1
    return values
