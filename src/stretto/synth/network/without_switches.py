"""Remove switches from a network without losing rate: edges u-w-t become edges u-t.

Capacities are whole units here. A switch is first replaced by an even spread over its
ports, which keeps the rate on regular machines and is checked; where that fails, exact
edge splitting finds how many units of each pair of edges may go (ForestColl's theorem:
some order always empties the switch).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import TypeAlias

from stretto.errors import TopologyError
from stretto.synth.network.maxflow import FlowGraph
from stretto.synth.network.model import Network

__all__ = ["Units", "feasible", "never_stop", "remove_switches"]

_Path: TypeAlias = tuple[int, ...]
_ENDLESS = 1 << 60


def never_stop() -> None:
    """Let a search go on: the check of one that has no deadline."""


class Units:
    """Whole units of capacity between nodes, each remembering the links it uses."""

    def __init__(self, network: Network, capacity: list[int]) -> None:
        self.network = network
        self.ways: dict[tuple[int, int], list[tuple[_Path, int]]] = {}
        for e, (link, units) in enumerate(zip(network.links, capacity, strict=True)):
            if units:
                self.ways[link.src, link.dst] = [((e,), units)]

    def capacity(self, src: int, dst: int) -> int:
        """Return the units between two nodes."""
        return sum(units for _, units in self.ways.get((src, dst), ()))

    def edges(self) -> Iterator[tuple[int, int, int]]:
        """Yield (from, to, units)."""
        for (u, v), ways in self.ways.items():
            yield u, v, sum(units for _, units in ways)

    def take(self, src: int, dst: int, units: int) -> list[tuple[_Path, int]]:
        """Remove units and return them with their links."""
        taken = []
        ways = self.ways[src, dst]
        while units:
            path, have = ways.pop()
            used = min(have, units)
            if have > used:
                ways.append((path, have - used))
            taken.append((path, used))
            units -= used
        if not ways:
            del self.ways[src, dst]
        return taken

    def split(self, u: int, w: int, t: int, units: int) -> None:
        """Turn units of u-w and w-t into units of u-t; loops are dropped."""
        first, second = self.take(u, w, units), self.take(w, t, units)
        if u == t:
            return
        joined: dict[_Path, int] = defaultdict(int)
        while first:
            (a, x), (b, y) = first.pop(), second.pop()
            joined[a + b] += min(x, y)
            if x > y:
                first.append((a, x - y))
            elif y > x:
                second.append((b, y - x))
        self.ways.setdefault((u, t), []).extend(joined.items())

    def copy(self) -> Units:
        """Return an independent copy."""
        other = Units.__new__(Units)
        other.network = self.network
        other.ways = {key: list(ways) for key, ways in self.ways.items()}
        return other


def feasible(units: Units, roots: dict[int, int]) -> bool:
    """Return whether trees exist: `roots` says how many start at each rank."""
    network = units.network
    source = network.num_nodes
    flow = FlowGraph(source + 1)
    for u, v, c in units.edges():
        flow.add(u, v, c)
    for r, count in roots.items():
        flow.add(source, r, count)
    need = sum(roots.values())
    for v in network.members:
        flow.reset()
        if flow.solve(source, v) < need:
            return False
    return True


def remove_switches(
    units: Units, roots: dict[int, int], check: Callable[[], None] = never_stop
) -> Units:
    """Return units between ranks only; the rate for `roots` is kept."""
    network = units.network
    for w in range(network.num_nodes - 1, network.num_ranks - 1, -1):
        enters = sum(c for _, v, c in units.edges() if v == w)
        leaves = sum(c for u, _, c in units.edges() if u == w)
        if enters != leaves:
            raise TopologyError(
                f"{network.name}: {enters} units enter switch {w} and {leaves} leave;"
                " trees need as much out as in (a link is dead one way only)"
            )
        for variant in range(2):
            spread = _spread(units, w, variant)
            if spread is not None and feasible(spread, roots):
                units = spread
                break
        else:
            units = _exact(units, w, roots, check)
    return units


def _spread(units: Units, w: int, variant: int) -> Units | None:
    """Return a copy where the switch's units are spread evenly over pairs of ports."""
    network = units.network
    ports = sorted({u for u, v in units.ways if v == w})
    if ports != sorted({v for u, v in units.ways if u == w}) or any(
        p >= network.num_ranks for p in ports
    ):
        return None
    left_in = {u: units.capacity(u, w) for u in ports}
    left_out = {t: units.capacity(w, t) for t in ports}
    amount: dict[tuple[int, int], int] = defaultdict(int)
    box = network.box
    many = len({box[p] for p in ports}) > 1
    turns: list[list[tuple[int, int]]] = []
    for d in range(1, len(ports)):
        pairs = [(u, ports[(i + d) % len(ports)]) for i, u in enumerate(ports)]
        if not many or all(box[u] != box[t] for u, t in pairs):
            turns.append(pairs)
    if not turns:
        return None
    if variant:  # places that are alike in their boxes first
        turns.sort(key=lambda pairs: (pairs[0][1] - pairs[0][0]) % (len(ports) // 2))
    bulk = min(*left_in.values(), *left_out.values()) // len(turns)
    for pairs in turns if bulk else []:
        for u, t in pairs:
            amount[u, t] += bulk
            left_in[u] -= bulk
            left_out[t] -= bulk
    for pairs in turns:
        for u, t in pairs:
            if left_in[u] and left_out[t]:
                amount[u, t] += 1
                left_in[u] -= 1
                left_out[t] -= 1
    spread = units.copy()
    for (u, t), many_units in amount.items():
        spread.split(u, w, t, many_units)
    for u in ports:
        spread.ways.pop((u, w), None)
        spread.ways.pop((w, u), None)
    return spread


def _exact(
    units: Units, w: int, roots: dict[int, int], check: Callable[[], None] = never_stop
) -> Units:
    """Return a copy without the switch, by exact edge splitting."""
    units = units.copy()
    sources = sorted({u for u, v in units.ways if v == w})
    for u in sources:
        targets = sorted({v for x, v in units.ways if x == w})
        for t in [*(t for t in targets if t != u), u]:  # back to u: a loop, dropped
            check()
            most = min(units.capacity(u, w), units.capacity(w, t))
            if most:
                most = _splittable(units, u, w, t, most, roots)
            if most:
                units.split(u, w, t, most)
    for u, v in list(units.ways):
        if w in (u, v):
            del units.ways[u, v]
    assert feasible(units, roots)  # edge splitting keeps the rate
    return units


def _splittable(
    units: Units, u: int, w: int, t: int, most: int, roots: dict[int, int]
) -> int:
    """Return how many units may be split off without lowering any minimum cut."""
    network = units.network
    need, source = sum(roots.values()), network.num_nodes
    for start, end in ((u, w), (w, t)):
        flow = FlowGraph(source + 1)
        for a, b, c in units.edges():
            flow.add(a, b, c)
        for r, count in roots.items():
            flow.add(source, r, count)
        flow.add(start, source, _ENDLESS)
        flow.add(u, t, _ENDLESS)
        to = [flow.add(v, end if start == u else t, 0) for v in network.members]
        for v, edge in zip(network.members, to, strict=True):
            if most <= 0:
                return 0
            if v in ((u, t) if start == u else ()):
                continue
            flow.change(edge, _ENDLESS)
            flow.reset()
            most = min(
                most, flow.solve(start, end if start == u else t, need + most) - need
            )
            flow.change(edge, 0)
    return max(0, most)
