"""Links shared fairly: every flow gets as much as it can without taking from a smaller.

Rates are max-min fair. Between two events they are constant, so a flow's end is known.
When flows come and go, only flows that share a link with them, directly or through
others, can change; `settle` fills just these anew.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

__all__ = ["Flow", "Sharing"]


class Flow:
    """Bytes on their way over some links, at a rate that others change."""

    __slots__ = ("at_most", "ends_at", "left", "links", "owner", "rate", "since")

    def __init__(
        self, links: tuple[int, ...], nbytes: float, at_most: float, owner: object
    ) -> None:
        self.links = links
        self.left = nbytes
        self.at_most = at_most
        """What the sender itself can do, in bytes a microsecond."""
        self.owner = owner
        self.rate = 0.0
        self.since = 0.0
        self.ends_at = math.inf


class Sharing:
    """All flows, and the links they are on. Rates are bytes a microsecond."""

    __slots__ = ("_capacity", "_fresh", "_on", "_touched")

    def __init__(self, capacity: Iterable[float]) -> None:
        self._capacity = list(capacity)
        self._on: list[dict[Flow, None]] = [{} for _ in self._capacity]
        # dicts, not sets: their order is that of insertion, the same in every run
        self._touched: dict[int, None] = {}
        self._fresh: dict[Flow, None] = {}

    def add(self, flow: Flow, now: float) -> None:
        """Let a flow begin; it has no rate before the next `settle`."""
        flow.since = now
        self._fresh[flow] = None
        for link in flow.links:
            self._on[link][flow] = None

    def remove(self, flow: Flow) -> None:
        """Take a flow off its links."""
        for link in flow.links:
            on = self._on[link]
            del on[flow]
            if on:
                self._touched[link] = None

    def settle(self, now: float) -> list[Flow]:
        """Give every flow its fair rate, and return those whose end has changed."""
        changed: list[Flow] = []
        for flow in self._fresh:
            alone = flow.at_most
            for link in flow.links:
                if len(self._on[link]) > 1:
                    self._touched[link] = None
                    alone = -1.0
                elif self._capacity[link] < alone:
                    alone = self._capacity[link]
            if alone >= 0:
                self._set(flow, alone, now, changed)
        seen: dict[Flow, None] = {}
        for link in self._touched:
            for flow in self._on[link]:
                if flow not in seen:
                    self._fill(self._reach(flow, seen), now, changed)
        self._fresh.clear()
        self._touched.clear()
        return changed

    def _reach(self, start: Flow, seen: dict[Flow, None]) -> list[Flow]:
        """Return the flows that share links with one, directly or through others."""
        found = [start]
        seen[start] = None
        links: set[int] = set()
        for flow in found:
            for link in flow.links:
                if link not in links:
                    links.add(link)
                    for other in self._on[link]:
                        if other not in seen:
                            seen[other] = None
                            found.append(other)
        return found

    def _fill(self, flows: list[Flow], now: float, changed: list[Flow]) -> None:
        """Raise all rates together; whoever meets a full link or its limit stops."""
        room: dict[int, float] = {}
        count: dict[int, int] = {}
        for flow in flows:
            for link in flow.links:
                room[link] = self._capacity[link]
                count[link] = count.get(link, 0) + 1
        rising = dict.fromkeys(flows)
        while rising:
            level = min((room[k] / count[k] for k in count), default=math.inf)
            limit = min(flow.at_most for flow in rising)
            if limit <= level:
                level = limit
                stopped = [flow for flow in rising if flow.at_most <= level]
            else:
                full = [k for k in count if room[k] / count[k] <= level * _SAME]
                stopped = [f for k in full for f in self._on[k] if f in rising]
            for flow in dict.fromkeys(stopped):
                self._set(flow, level, now, changed)
                del rising[flow]
                for link in flow.links:
                    room[link] = max(0.0, room[link] - level)
                    count[link] -= 1
                    if not count[link]:
                        del count[link]

    def _set(self, flow: Flow, rate: float, now: float, changed: list[Flow]) -> None:
        if rate == flow.rate:
            return
        flow.left = max(0.0, flow.left - flow.rate * (now - flow.since))
        flow.since = now
        flow.rate = rate
        flow.ends_at = now + flow.left / rate if rate > 0 else math.inf
        changed.append(flow)


_SAME = 1 + 1e-12
