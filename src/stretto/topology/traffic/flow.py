"""Traffic as flows: parcels in queues, bytes at fair rates on links, and their ends.

A parcel waits until those before it in its queue have left, then its bytes take what
rate the links allow. It has *left* when its last byte is sent, and arrives the latency
of its route later; latency does not occupy a link. A parcel without bytes (a signal)
leaves at once, when its turn comes.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Sequence
from typing import Generic, TypeVar

from stretto.fabric import jit
from stretto.topology.machine import Machine
from stretto.topology.traffic.ends import CompiledEnds, Ends, PlainEnds
from stretto.topology.traffic.fluid import FluidQueues
from stretto.topology.traffic.traffic import Delivery, LinkCounts, Parcel

__all__ = ["Flows"]

_SAME_US = 1e-9
"""Events this close are one moment: rounding must not make two out of one."""
_MANY = 4_000
"""Transfers beyond which compiled code is worth its import: a few milliseconds each."""

What = TypeVar("What")


class Flows(Generic[What]):
    """A machine's links in virtual time, shared fairly."""

    def __init__(
        self, machine: Machine, *, compiled: bool | None = None, marks: bool = False
    ) -> None:
        """Begin with nothing on its way.

        `compiled` says whether rates come from compiled code, which gives the same ones
        to the last bit; None: when there are many transfers and Numba is there.
        `marks` models a queue at each link, and what ECN would mark there.
        """
        self.now_us = 0.0
        self.link_nbytes = [0.0] * len(machine.links)
        self.num_transfers = 0
        self._machine = machine
        capacity = [k.bandwidth_gbytes_per_s * 1e3 for k in machine.links]
        self._ends: Ends = CompiledEnds(capacity) if compiled else PlainEnds(capacity)
        self._may_compile = compiled is None
        self._moment: float | None = None
        """What comes next, when nothing was sent since that was asked."""
        self._queues_at_links = FluidQueues(machine) if marks else None
        self._events: list[tuple[float, int, Parcel[What]]] = []
        self._queues: dict[object, deque[Parcel[What]]] = {}
        """Parcels of a queue; the first is the one that is being sent."""

    def send(
        self, parcel: Parcel[What], *, ready_us: float, queue: object
    ) -> Delivery[What] | None:
        """Send behind what is in the queue; return the delivery if it is now known."""
        parcel.ready = ready_us
        ahead = self._queues.get(queue)
        if ahead:
            parcel.queue = ahead
            ahead.append(parcel)
            return None
        if not parcel.nbytes:
            return _left(parcel, ready_us)
        if ahead is None:
            ahead = self._queues[queue] = deque()
        parcel.queue = ahead
        ahead.append(parcel)
        self._at(ready_us, parcel)
        return None

    def next_us(self) -> float:
        """Return when the next thing happens; infinity when nothing does."""
        first = self._events[0][0] if self._events else math.inf
        if first > self.now_us + _SAME_US:
            # time is about to move on: now all that began and ended is known
            if self._may_compile and self.num_transfers >= _MANY:
                self._compile()
            self._ends.settle(self.now_us)
        moment = self._moment = min(first, self._ends.next_us())
        return moment

    def step(self) -> list[Delivery[What]]:
        """Come to the next moment and return what leaves in it."""
        if self._moment is None:
            self.next_us()
        assert self._moment is not None  # `next_us` says when
        now = self.now_us = max(self.now_us, self._moment)
        self._moment = None
        soon = now + _SAME_US
        left: list[Delivery[What]] = []
        for when, age, parcel in self._ends.due(soon):
            while self._events and self._events[0][:2] < (when, age):
                self._begin(heapq.heappop(self._events)[2])
            self._ends.remove(parcel)
            self._end(parcel, left)
        while self._events and self._events[0][0] <= soon:
            self._begin(heapq.heappop(self._events)[2])
        return left

    def counts(self) -> Sequence[LinkCounts]:
        """Return what happened on every link; marks and queues are modelled."""
        queues = self._queues_at_links
        if queues:
            queues.finish(self.now_us)
        return [
            LinkCounts(
                name=link.name,
                nbytes=self.link_nbytes[e],
                marks=queues.marks[e] if queues else 0.0,
                pauses=0,
                drops=0,
                max_queue=queues.most[e] if queues else 0.0,
            )
            for e, link in enumerate(self._machine.links)
        ]

    def _compile(self) -> None:
        self._may_compile = False
        if jit.missing() or not isinstance(self._ends, PlainEnds):
            return
        self._ends = CompiledEnds.like(self._ends)

    def _begin(self, parcel: Parcel[What]) -> None:
        for link in parcel.route.links:
            self.link_nbytes[link] += parcel.nbytes
        self.num_transfers += 1
        self._ends.add(parcel, self.now_us)
        if self._queues_at_links:
            self._queues_at_links.add(parcel, self.now_us)

    def _end(self, parcel: Parcel[What], left: list[Delivery[What]]) -> None:
        if self._queues_at_links:
            self._queues_at_links.remove(parcel, self.now_us)
        left.append(_left(parcel, self.now_us))
        queue = parcel.queue
        assert queue is not None  # parcels with bytes are in one
        queue.popleft()
        while queue:
            following = queue[0]
            ready = max(following.ready, self.now_us)
            if following.nbytes:
                self._at(ready, following)
                break
            left.append(_left(following, ready))
            queue.popleft()

    def _at(self, when: float, parcel: Parcel[What]) -> None:
        self._moment = None
        # ages break ties, so that runs are repeatable
        heapq.heappush(self._events, (when, self._ends.age(), parcel))


def _left(parcel: Parcel[What], now: float) -> Delivery[What]:
    return Delivery(parcel.what, now, now + parcel.route.latency_us)
