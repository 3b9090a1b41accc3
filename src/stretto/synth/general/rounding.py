"""From fractions to pieces: whole numbers of equal pieces for every tree and path.

Everybody who has something to send cuts it into pieces and gives each to one of their
routes. The fractions are rounded, then pieces move, one at a time, from the routes that
cross the fullest links to others, as long as that helps.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["RouteOwner", "rounded", "shared_out"]

_STEEP = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteOwner:
    """Somebody's routes, by number, and the pieces that they carry."""

    routes: tuple[int, ...]
    weights: tuple[float, ...]
    """What fraction goes over each route; they sum to 1."""
    pieces: int
    size: float = 1.0
    """Of a piece."""


def shared_out(
    owners: Sequence[RouteOwner],
    loads: Any,
    *,
    seed: int = 0,
    moves: int = 4000,
    check: Callable[[], bool],
) -> list[int]:
    """Return how many pieces every route carries; `check` says when to end.

    `loads` is a matrix: what a piece of size 1 on a route takes of every link.
    """
    counts = [0] * len(loads)
    owner_of = {r: o for o in owners for r in o.routes}
    for o in owners:
        for r, n in zip(o.routes, rounded(o), strict=True):
            counts[r] = n
    size = np.array(
        [owner_of[r].size if r in owner_of else 0.0 for r in range(len(loads))]
    )
    taken = loads * size[:, None]
    load = np.array(counts, dtype=float) @ taken
    chance = random.Random(seed)
    stuck: set[int] = set()
    for turn in range(moves):
        if not turn % 32 and check():
            break
        top = float(load.max())
        potential = _potential(load, top)
        fullest = int(
            np.argmax(np.where(np.isin(np.arange(len(load)), list(stuck)), -1.0, load))
        )
        if load[fullest] < top * 0.999:
            break
        crossing = [
            r for r in np.flatnonzero(taken[:, fullest]).tolist() if counts[r] > 0
        ]
        best: tuple[float, int, int] | None = None
        chance.shuffle(crossing)
        for r in crossing[:64]:
            routes = [q for q in owner_of[r].routes if q != r]
            if not routes:
                continue
            trial = load - taken[r] + taken[routes]
            worth = _potential(trial, top)
            pick = int(np.argmin(worth))
            if worth[pick] < potential * (1 - 1e-9) and (
                best is None or worth[pick] < best[0]
            ):
                best = float(worth[pick]), r, routes[pick]
        if best is None:
            stuck.add(fullest)
            continue
        _, r, q = best
        counts[r] -= 1
        counts[q] += 1
        load = load - taken[r] + taken[q]
        stuck.clear()
    return counts


def _potential(load: Any, top: float) -> Any:
    """Return what is to become less; where a slow link gets much, it is infinite."""
    with np.errstate(over="ignore"):
        return ((load / top) ** _STEEP).sum(axis=-1)


def rounded(owner: RouteOwner) -> list[int]:
    """Return whole pieces, the largest remainders rounded up."""
    exact = [w * owner.pieces for w in owner.weights]
    whole = [int(x + 1e-9) for x in exact]
    order = sorted(range(len(exact)), key=lambda i: whole[i] - exact[i])
    for i in order[: owner.pieces - sum(whole)]:
        whole[i] += 1
    return whole
