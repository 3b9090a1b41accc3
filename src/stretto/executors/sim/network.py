"""What is on the way between ranks: parcels in queues, flows on links, and their ends.

A parcel waits until those before it in its queue have left, then its bytes take what
rate the links allow. It has *left* when its last byte is sent, and arrives the latency
of its route later; latency does not occupy a link. A parcel without bytes (a signal)
leaves at once, when its turn comes.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from typing import Generic, NamedTuple, TypeVar

from stretto.executors.sim.sharing import Flow, Sharing
from stretto.topology import Machine, Route

__all__ = ["Delivery", "Network", "Parcel"]

_SAME_US = 1e-9
"""Events this close are one moment: rounding must not make two out of one."""

What = TypeVar("What")


class Parcel(Generic[What]):
    """Bytes for a peer, or just word, and what they are."""

    __slots__ = ("at_most", "nbytes", "queue", "ready", "route", "what")

    def __init__(
        self, what: What, route: Route, nbytes: float, at_most: float = math.inf
    ) -> None:
        self.what = what
        self.route = route
        self.nbytes = nbytes
        self.at_most = at_most
        """What the sender itself can do, in bytes a microsecond."""
        self.ready = 0.0
        self.queue: deque[Parcel[What]] | None = None


class Delivery(NamedTuple, Generic[What]):
    """A parcel that has left, when it did, and when it arrives."""

    what: What
    left_us: float
    arrives_us: float


class Network(Generic[What]):
    """A machine's links in virtual time."""

    def __init__(self, machine: Machine) -> None:
        self.now_us = 0.0
        self.link_nbytes = [0.0] * len(machine.links)
        self.num_transfers = 0
        self._sharing = Sharing(k.bandwidth_gbytes_per_s * 1e3 for k in machine.links)
        self._events: list[tuple[float, int, Flow | Parcel[What]]] = []
        self._num_events = 0
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
        events = self._events
        if not events or events[0][0] > self.now_us + _SAME_US:
            # time is about to move on: now all that began and ended is known
            for flow in self._sharing.settle(self.now_us):
                self._at(flow.ends_at, flow)
        return events[0][0] if events else math.inf

    def step(self) -> list[Delivery[What]]:
        """Come to the next moment and return what leaves in it."""
        now = self.now_us = max(self.now_us, self._events[0][0])
        left: list[Delivery[What]] = []
        while self._events and self._events[0][0] <= now + _SAME_US:
            when, _, thing = heapq.heappop(self._events)
            if isinstance(thing, Parcel):
                self._begin(thing)
            elif thing.ends_at == when:  # otherwise its rate has changed since
                thing.ends_at = math.nan
                self._sharing.remove(thing)
                self._end(thing.owner, left)  # type: ignore[arg-type]
        return left

    def _begin(self, parcel: Parcel[What]) -> None:
        links = parcel.route.links
        for link in links:
            self.link_nbytes[link] += parcel.nbytes
        self.num_transfers += 1
        flow = Flow(links, parcel.nbytes, parcel.at_most, parcel)
        self._sharing.add(flow, self.now_us)

    def _end(self, parcel: Parcel[What], left: list[Delivery[What]]) -> None:
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

    def _at(self, when: float, thing: Flow | Parcel[What]) -> None:
        self._num_events += 1  # breaks ties by age, so that runs are repeatable
        heapq.heappush(self._events, (when, self._num_events, thing))


def _left(parcel: Parcel[What], now: float) -> Delivery[What]:
    return Delivery(parcel.what, now, now + parcel.route.latency_us)
