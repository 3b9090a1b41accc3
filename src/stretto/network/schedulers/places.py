"""Where jobs go: under as few leaf switches as can be, or anywhere."""

from __future__ import annotations

import random
from collections.abc import Mapping

from stretto.network.schedulers.scheduler import ClusterView
from stretto.topology import Machine

__all__ = ["crossings", "place"]


def place(
    view: ClusterView,
    grants: Mapping[str, int],
    draw: random.Random,
    *,
    packs: bool,
    loosely: bool = False,
) -> dict[str, tuple[int, ...]]:
    """Return ranks for the jobs that get some; who keeps its number stays.

    A job that is to have certain ranks waits until they are free. `loosely` chooses
    among boxes that have room at random, where otherwise the fullest is taken.
    """
    by_name = {standing.job.name: standing for standing in view.jobs}
    found = {
        name: standing.ranks
        for name, standing in by_name.items()
        if standing.ranks and grants.get(name) == len(standing.ranks)
    }
    taken = {rank for ranks in found.values() for rank in ranks}
    free = [rank for rank in range(view.machine.num_ranks) if rank not in taken]
    waiting = [name for name, many in grants.items() if many and name not in found]
    for name in sorted(waiting, key=lambda name: not by_name[name].job.ranks):
        wanted = by_name[name].job.ranks
        if wanted:
            chosen = wanted if set(wanted) <= set(free) else ()
        elif grants[name] > len(free):
            chosen = ()
        elif packs:
            chosen = _packed(view.machine, free, grants[name], draw, loosely)
        else:
            chosen = tuple(draw.sample(free, grants[name]))
        if chosen:
            found[name] = chosen
            free = [rank for rank in free if rank not in chosen]
    return found


def _packed(
    machine: Machine, free: list[int], many: int, draw: random.Random, loosely: bool
) -> tuple[int, ...]:
    """Return ranks of as few boxes as can be, those of a box together."""
    size = machine.ranks_per_box
    boxes: dict[int, list[int]] = {}
    for rank in free:
        boxes.setdefault(rank // size, []).append(rank)
    chosen: list[int] = []
    while len(chosen) < many:
        need = many - len(chosen)
        fits = [box for box, ranks in boxes.items() if len(ranks) >= need]
        if fits:
            least = min(len(boxes[box]) for box in fits)
            fits = [b for b in fits if loosely or len(boxes[b]) == least]
        else:
            most = max(len(ranks) for ranks in boxes.values())
            fits = [box for box, ranks in boxes.items() if len(ranks) == most]
        chosen += boxes.pop(draw.choice(fits))[:need]
    return tuple(chosen)


def crossings(machine: Machine, places: Mapping[str, tuple[int, ...]]) -> int:
    """Return how many boxes jobs are in, beyond one each."""
    size = machine.ranks_per_box
    return sum(len({rank // size for rank in ranks}) - 1 for ranks in places.values())
