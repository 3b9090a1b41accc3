"""The way from one rank to another: found when first asked for, then remembered.

A machine of a thousand ranks has a million pairs, of which a collective uses a few
thousand; so nothing is computed ahead.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from stretto.errors import BoundsError, TopologyError
from stretto.topology.parts import Link

__all__ = ["Route", "Router"]


class Route(NamedTuple):
    """The links from one rank to another, by index, in order."""

    links: tuple[int, ...]
    latency_us: float
    relays: tuple[int, ...]
    """Ranks on the way that must pass the data on."""


class _Cost(NamedTuple):
    """What makes a way better than another, the most important first."""

    relays: int
    latency_us: float
    hops: int
    us_per_kb: float


_MOST_ROUTES = 256
"""Of one pair: a fat tree of 32 ports has so many."""

_Best = dict[int, tuple[_Cost, int]]
"""Nodes reached, at what cost and over which link."""


class Router:
    """The routes of one machine."""

    __slots__ = (
        "_coming",
        "_dead_ranks",
        "_equal",
        "_leaving",
        "_links",
        "_name",
        "_num_ranks",
        "_routes",
        "_trees",
    )

    def __init__(
        self,
        name: str,
        num_ranks: int,
        links: tuple[Link, ...],
        dead_ranks: frozenset[int],
    ) -> None:
        self._name = name
        self._num_ranks = num_ranks
        self._links = links
        self._dead_ranks = dead_ranks
        self._leaving: dict[int, list[int]] = {}
        self._coming: dict[int, list[int]] = {}
        self._routes: dict[tuple[int, int], Route] = {}
        self._equal: dict[tuple[int, int], tuple[Route, ...]] = {}
        self._trees: dict[int, _Best] = {}

    def route(self, src: int, dst: int) -> Route:
        """Return the route between two ranks."""
        found = self._routes.get((src, dst))
        if found is None:
            found = self._routes[src, dst] = self._find(src, dst)
        return found

    def _find(self, src: int, dst: int) -> Route:
        n = self._num_ranks
        for rank in (src, dst):
            if not 0 <= rank < n:
                raise BoundsError(
                    f"machine {self._name}: no rank {rank}; it has 0 to {n - 1}"
                )
        if src == dst:
            return Route((), 0.0, ())
        best = self._search(src, dst)
        if dst not in best:  # no way over switches alone: let ranks relay
            if src not in self._trees:
                self._trees[src] = self._search(src, None)
            best = self._trees[src]
        if dst not in best:
            raise TopologyError(
                f"machine {self._name}: no way from rank {src} to rank {dst};"
                f" it needs a chain of links that are not dead, such as by a switch"
                f" `over` those of both"
            )
        links = tuple(reversed(list(self._walk_back(best, src, dst))))
        relays = tuple(d for d in (self._links[i].dst for i in links) if d < n)
        return Route(links, best[dst][0].latency_us, relays[:-1])

    def equal_routes(self, src: int, dst: int) -> tuple[Route, ...]:
        """Return the routes that cost as little as the best: at most `_MOST_ROUTES`."""
        found = self._equal.get((src, dst))
        if found is None:
            first = self.route(src, dst)
            found = (first,)
            if len(first.links) > 1 and not first.relays:
                best = self._search(src, dst)
                ways = islice(self._ways_back(best, src, dst), _MOST_ROUTES)
                found = tuple(Route(way, first.latency_us, ()) for way in ways)
            self._equal[src, dst] = found
        return found

    def _ways_back(self, best: _Best, src: int, node: int) -> Iterator[tuple[int, ...]]:
        """Yield the ways to a node that cost as little as the one that was found."""
        if node == src:
            yield ()
            return
        if not self._coming:
            for index, link in enumerate(self._links):
                if link.bandwidth_gbytes_per_s > 0:
                    self._coming.setdefault(link.dst, []).append(index)
        want = best[node][0]
        for index in self._coming[node]:
            link = self._links[index]
            if link.src not in best or (link.src < self._num_ranks and link.src != src):
                continue
            cost = best[link.src][0]
            late = cost.latency_us + link.latency_us
            us = cost.us_per_kb + 1 / link.bandwidth_gbytes_per_s
            same = math.isclose(late, want.latency_us)
            if cost.hops + 1 == want.hops and same and math.isclose(us, want.us_per_kb):
                for way in self._ways_back(best, src, link.src):
                    yield (*way, index)

    def _walk_back(self, best: _Best, src: int, dst: int) -> Iterator[int]:
        node = dst
        while node != src:
            link = best[node][1]
            yield link
            node = self._links[link].src

    def _search(self, src: int, dst: int | None) -> _Best:
        """Reach `dst` over switches only, or every node, with ranks as relays."""
        n = self._num_ranks
        if not self._leaving:
            for index, link in enumerate(self._links):
                if link.bandwidth_gbytes_per_s > 0:
                    self._leaving.setdefault(link.src, []).append(index)
        best: _Best = {}
        heap = [(_Cost(0, 0.0, 0, 0.0), src, -1)]
        while heap:
            cost, node, over = heapq.heappop(heap)
            if node in best:
                continue
            best[node] = (cost, over)
            if node == dst:
                break
            is_relay = node < n and node != src
            if is_relay and node in self._dead_ranks:
                continue
            for index in self._leaving.get(node, ()):
                link = self._links[index]
                if link.dst in best:
                    continue
                if dst is not None and link.dst < n and link.dst != dst:
                    continue
                further = _Cost(
                    cost.relays + is_relay,
                    cost.latency_us + link.latency_us,
                    cost.hops + 1,
                    cost.us_per_kb + 1 / link.bandwidth_gbytes_per_s,
                )
                heapq.heappush(heap, (further, link.dst, index))
        return best
