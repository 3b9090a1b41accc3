"""Who knows what: vector clocks of lanes, for data and for mere order.

Two kinds of knowledge travel. A *release* signal carries `data`: everything the sender
did, writes included, is visible to who waits. Packets and credits carry only `order`:
the sender got here, so what it read before it has been read. Legend: l lane, t time.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Times = NDArray[np.int32]


class VectorClock:
    """What one lane knows of every lane: up to which step."""

    __slots__ = ("data", "order")

    def __init__(self, data: Times, order: Times) -> None:
        self.data, self.order = data, order


_ALWAYS = np.iinfo(np.int32).max
"""What a lane knows of itself, in its own clock: all. Messages say up to when."""


class Clocks:
    """The clocks of all lanes. Time 1 is entering; each step ticks."""

    def __init__(self, num_lanes: int) -> None:
        self._none = np.zeros(num_lanes, np.int32)
        self.nothing = VectorClock(self._none, self._none)
        """The message of what has been heard before."""
        own = np.diag(np.full(num_lanes, _ALWAYS, np.int32))
        self.lanes = [
            VectorClock(own[i].copy(), own[i].copy()) for i in range(num_lanes)
        ]
        self.times = [1] * num_lanes
        """The step at which each lane is."""

    def tick(self, lane: int) -> int:
        """Start a step of a lane and return its time."""
        self.times[lane] = time = self.times[lane] + 1
        return time

    def message(
        self, lane: int, *, release: bool, until: int | None = None
    ) -> VectorClock:
        """Return what a signal (or packet) of this lane tells now, or of `until`."""
        clock = self.lanes[lane]
        time = self.times[lane] if until is None else until
        order = clock.order.copy()
        order[lane] = time
        if not release:
            return VectorClock(self._none, order)
        data = clock.data.copy()
        data[lane] = time
        return VectorClock(data, order)

    def learn(self, lane: int, told: VectorClock) -> None:
        """Let a lane know what a message tells."""
        clock = self.lanes[lane]
        if told is self.nothing:
            return
        np.maximum(clock.order, told.order, out=clock.order)
        if told.data is not self._none:
            np.maximum(clock.data, told.data, out=clock.data)
