"""Queues as fluids: what ECN would mark where flows want more than a link has.

Between two changes the demand on a link is constant, so its queue rises or falls at a
constant pace, from nothing to the most that congestion control lets stand there. Marks
follow from the RED curve at that queue. All of this is a model, and called so.
"""

from __future__ import annotations

import math
from typing import Any

from stretto.topology.machine import Machine
from stretto.topology.traffic.traffic import Parcel

__all__ = ["FluidQueues"]


class FluidQueues:
    """The queue of every link: demand in bytes a microsecond, marks in packets."""

    def __init__(self, machine: Machine) -> None:
        links = machine.links
        ports = machine.ports
        self._packet = float(ports.packet_nbytes)
        self._rates = [k.bandwidth_gbytes_per_s * 1e3 for k in links]
        self._curves = [
            (
                ports.ecn_min_nbytes(k.bandwidth_gbytes_per_s),
                ports.ecn_max_nbytes(k.bandwidth_gbytes_per_s),
            )
            for k in links
        ]
        self._most_share = ports.ecn_max_share
        self._demand = [0.0] * len(links)
        self._queue = [0.0] * len(links)
        self._since = [0.0] * len(links)
        self.marks = [0.0] * len(links)
        self.most = [0.0] * len(links)
        self.excess = [0.0] * len(links)
        """Bytes that were wanted beyond what the link has."""

    def add(self, parcel: Parcel[Any], now: float) -> None:
        """Let a parcel's demand begin."""
        self._change(parcel, now, 1.0)

    def remove(self, parcel: Parcel[Any], now: float) -> None:
        """Let it end."""
        self._change(parcel, now, -1.0)

    def finish(self, now: float) -> None:
        """Bring all queues to this moment."""
        for link in range(len(self._queue)):
            self._advance(link, now)

    def _change(self, parcel: Parcel[Any], now: float, sign: float) -> None:
        wants = parcel.at_most
        if math.isinf(wants):  # a sender without a limit has that of its first link
            wants = self._rates[parcel.route.links[0]]
        for link in parcel.route.links:
            self._advance(link, now)
            self._demand[link] = max(0.0, self._demand[link] + sign * wants)

    def _advance(self, link: int, now: float) -> None:
        took, self._since[link] = now - self._since[link], now
        low, high = self._curves[link]
        excess = self._demand[link] - self._rates[link]
        if took <= 0 or (excess <= 0 and not self._queue[link]):
            return
        self.excess[link] += max(0.0, excess) * took
        before = self._queue[link]
        after = min(high, max(0.0, before + excess * took))
        moved = (after - before) / excess if excess else took
        self._queue[link] = after
        self.most[link] = max(self.most[link], after)
        slope = self._most_share / (high - low) if high > low else 0.0
        marked = slope * _area(before - low, after - low) * moved
        if after >= high:
            marked += self._most_share * (took - moved)
        self.marks[link] += marked * self._rates[link] / self._packet


def _area(a: float, b: float) -> float:
    """Return the mean of max(0, x) for x from a to b."""
    if abs(b - a) < 1e-9:
        return max(0.0, a)
    high, low = max(a, b), min(a, b)
    if high <= 0:
        return 0.0
    return (high * high - max(0.0, low) ** 2) / 2 / (high - low)
