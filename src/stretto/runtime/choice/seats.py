"""Ranks on a part of a machine: where they sit, what it costs there, and what serves.

A group that has lost a rank is one of n - 1, and the machine has n places still: what
is best depends on which is empty. So programs that were written or found for just that
part compete with those for any n - 1 ranks, and rings whose order skips the place.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from stretto import topology
from stretto.errors import TopologyError
from stretto.program import algorithms
from stretto.program.lang import Algorithm
from stretto.runtime.choice.question import NO_SEATS, Question, Seats
from stretto.topology import Machine

ORDER = "order"
"""The parameter of an algorithm that takes ranks in another order."""


def seats_of(machine: str, places: Sequence[int]) -> Seats:
    """Return where ranks sit; nothing where each sits at its number, and all do."""
    if not machine or tuple(places) == tuple(range(topology.load(machine).num_ranks)):
        return NO_SEATS
    return machine, tuple(places)


def settled_places(said: Sequence[int]) -> tuple[int, ...]:
    """Return the places of ranks; who says -1 has come, and takes the first free."""
    taken = {place for place in said if place >= 0}
    free = (place for place in range(len(said)) if place not in taken)
    return tuple(next(free) if place < 0 else place for place in said)


@functools.lru_cache(maxsize=64)
def machine_at(seats: Seats) -> Machine:
    """Return the machine on which nobody passes data on but who sits there."""
    name, places = seats
    whole = topology.load(name)
    empty = set(range(whole.num_ranks)) - set(places)
    return whole.degraded(dead_ranks=empty)


def for_seats(asked: Question, known: Sequence[Algorithm]) -> Iterator[Algorithm]:
    """Yield what serves ranks on a part of a machine beside what serves any.

    Programs among just these places, and what is known in an order of the machine's.
    """
    name, places = asked.seats
    if not places:
        return
    if list(places) == sorted(places):
        num_ranks = topology.load(name).num_ranks
        yield from algorithms.among(asked.collective, num_ranks, places)
    order = _order(asked.seats)
    if order != tuple(range(len(places))):
        yield from (_ordered(one, order) for one in known if one.takes(ORDER))


@functools.lru_cache(maxsize=256)
def _ordered(one: Algorithm, order: tuple[int, ...]) -> Algorithm:
    """Return an algorithm that takes the ranks in an order."""
    name = f"{one.name}:{'-'.join(map(str, order))}"
    return replace(
        one, name=name, function=functools.partial(one.function, order=order)
    )


@functools.lru_cache(maxsize=64)
def _order(seats: Seats) -> tuple[int, ...]:
    """Return an order of the ranks in which neighbours are near, from the last round.

    The nearest that is left comes next; then stretches are turned round while that
    makes the slowest hop quicker, or else their sum.
    """
    hops = _hops(seats)
    order, left = [0], set(range(1, len(hops)))
    while left:
        order.append(min(left, key=lambda r: (hops[order[-1]][r], r)))
        left.remove(order[-1])
    cost, turns = _round(order, hops), True
    while turns:
        turns = False
        for i in range(1, len(order)):
            for j in range(i + 1, len(order)):
                other = [*order[:i], *reversed(order[i : j + 1]), *order[j + 1 :]]
                if (found := _round(other, hops)) < cost:
                    order, cost, turns = other, found, True
    return tuple(order)


def _round(
    order: Sequence[int], hops: Sequence[Sequence[float]]
) -> tuple[float, float]:
    times = [hops[a][b] for a, b in zip(order, (*order[1:], order[0]), strict=True)]
    return max(times), sum(times)


def _hops(seats: Seats) -> list[list[float]]:
    """Return how long data are on their way from each rank to each other."""
    machine, (_, places) = machine_at(seats), seats

    def hop(a: int, b: int) -> float:
        if a == b:
            return 0.0
        try:
            route = machine.route(a, b)
        except TopologyError:
            return math.inf
        rates = (machine.links[k].bandwidth_gbytes_per_s for k in route.links)
        slow = min(rates)
        return route.latency_us + (1 / slow if slow else math.inf)

    return [[hop(a, b) for b in places] for a in places]
