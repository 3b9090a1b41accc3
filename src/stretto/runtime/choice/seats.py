"""Ranks on a machine that is named: where they sit, what it costs there, what serves.

A group that has lost a rank is one of n - 1, and the machine has n places still: what
is best depends on which is empty. So programs that were written or found for just that
part compete with those for any n - 1 ranks, and these with their ranks in an order that
suits the machine.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

from stretto import topology
from stretto.errors import StrettoError
from stretto.program import algorithms
from stretto.program.lang import Algorithm, ordered
from stretto.runtime.choice.orders import alike, better_order
from stretto.runtime.choice.plans import proved_program
from stretto.runtime.choice.question import MOST_SIMULATED, NO_SEATS, Question, Seats
from stretto.topology import Machine


def seats_of(machine: str, places: Sequence[int]) -> Seats:
    """Return where ranks sit; nothing where that tells nothing.

    It does not where nobody names a machine; nor where each place is taken by the rank
    of its number, if all are alike, or too many for anybody to compare orders.
    """
    if not machine:
        return NO_SEATS
    seats = machine, tuple(places)
    if is_full(seats) and (len(places) > MOST_SIMULATED or _alike(machine)):
        return NO_SEATS
    return seats


@functools.lru_cache(maxsize=64)
def is_full(seats: Seats) -> bool:
    """Return whether each place of a machine is taken by the rank of its number."""
    name, places = seats
    return bool(name) and places == tuple(range(topology.load(name).num_ranks))


@functools.lru_cache(maxsize=64)
def _alike(machine: str) -> bool:
    whole = topology.load(machine)
    try:
        return alike(whole, tuple(range(whole.num_ranks)))
    except StrettoError:  # no way to somebody
        return True


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
    """Yield what serves ranks where they sit on a machine beside what serves any.

    Programs among just these places, and what is known with its ranks in the order that
    suits the machine.
    """
    name, places = asked.seats
    if not places:
        return
    if list(places) == sorted(places):
        num_ranks = topology.load(name).num_ranks
        yield from algorithms.among(asked.collective, num_ranks, places)
    if len(places) <= MOST_SIMULATED:
        yield from filter(None, (_ordered(one, asked) for one in known))


def _ordered(one: Algorithm, asked: Question) -> Algorithm | None:
    """Return an algorithm in an order that suits the machine better, if one does."""
    if one.kernel is not None:
        return None
    try:
        program = proved_program(one, asked.num_ranks, asked.params, asked.hosts).value
        order = better_order(program, machine_at(asked.seats), asked.seats[1])
        made = ordered(one, order)
    except StrettoError:  # it serves no such call, or there is no way to somebody
        return None
    return made if order != tuple(range(len(order))) else None
