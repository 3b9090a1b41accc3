"""Who knows what: vector clocks of lanes, for data and for mere order.

Two kinds of knowledge travel. A *release* signal carries `data`: everything the sender
did, writes included, is visible to who waits. Packets and credits carry only `order`:
the sender got here, so what it read before it has been read. Legend: l lane, t time.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["Clock", "Clocks"]

Times = NDArray[np.int32]


class Clock:
    """What one lane knows of every lane: up to which step."""

    __slots__ = ("data", "order")

    def __init__(self, data: Times, order: Times) -> None:
        self.data, self.order = data, order

    def learn(self, other: Clock) -> None:
        """Know what the other knows as well."""
        np.maximum(self.data, other.data, out=self.data)
        np.maximum(self.order, other.order, out=self.order)


class Clocks:
    """The clocks of all lanes. Time 1 is entering; each step ticks."""

    def __init__(self, num_lanes: int) -> None:
        self._none = np.zeros(num_lanes, np.int32)
        self.nothing = Clock(self._none, self._none)
        """The message of what has been heard before."""
        eye = np.eye(num_lanes, dtype=np.int32)
        self.lanes = [Clock(eye[i].copy(), eye[i].copy()) for i in range(num_lanes)]

    def tick(self, lane: int) -> int:
        """Start a step of a lane and return its time."""
        clock = self.lanes[lane]
        clock.data[lane] += 1
        clock.order[lane] += 1
        return int(clock.order[lane])

    def message(self, lane: int, *, release: bool) -> Clock:
        """Return what a signal (or packet) of this lane tells now."""
        clock = self.lanes[lane]
        data = clock.data.copy() if release else self._none
        return Clock(data, clock.order.copy())
