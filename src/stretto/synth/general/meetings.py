"""Who may meet: ranks that each add up what is near, and tell each other.

A sum with one root goes up a tree and down again. Where the last steps up and the first
ones down join the same ranks, all can be at once: each sends what it has added up
without the others, and then all of them have all. That is a step of latency less, at
the middle of the machine, where steps are the longest.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from itertools import combinations

import numpy as np

from stretto.synth.bounds.clusters import MOST_CLUSTERINGS, clusterings
from stretto.synth.network.hops import HopGraph
from stretto.synth.network.model import Network
from stretto.synth.solvers import csgraph

__all__ = ["meetings"]

_NEAR = 1.05
_MOST_MET = 4
_FAR = 1.49
"""Times as long as by one root alone, if latency were all: where all steps are alike it
is 1.5 times."""


def meetings(network: Network) -> list[tuple[int, ...]]:
    """Return pairs, and one rank of every cluster, that know all soonest; or nobody.

    Everybody is as often among them as can be, so that all links are used.
    """
    members = np.array(network.members)
    late = np.array([float(k.alpha) for k in network.links])
    step = HopGraph(network).hops(late + 1e-9).cost
    away = csgraph().shortest_path(np.where(np.isfinite(step), step, 0.0))
    away, step = (np.maximum(x, x.T)[np.ix_(members, members)] for x in (away, step))
    np.fill_diagonal(away, 0.0)
    alone = 2 * float(away.max(axis=1).min())

    def takes(some: tuple[int, ...]) -> float:
        steps = (float(step[a, b]) for a, b in combinations(some, 2))
        return 2 * float(away[[*some]].min(axis=0).max()) + max(steps)

    found: list[tuple[int, ...]] = []
    families: list[set[tuple[int, ...]]] = [
        {*combinations(range(len(members)), 2)},
        *_columns(network),
    ]
    for family in families:
        known = {some: takes(some) for some in family}
        least = min(known.values(), default=math.inf)
        near = [] if least >= alone * _FAR else list(known)
        near = [some for some in near if known[some] <= least * _NEAR]
        used: Counter[int] = Counter()
        for _ in range(min(len(near), len(members))):
            best = min(near, key=lambda s: (sum(used[v] for v in s), known[s], s))
            near.remove(best)
            used.update(best)
            found.append(tuple(int(members[v]) for v in best))
    return list(dict.fromkeys(found))


def _columns(network: Network) -> Iterator[set[tuple[int, ...]]]:
    """Yield, for ways to take ranks together, sets of one rank of every cluster."""
    place = {r: i for i, r in enumerate(network.members)}
    for cluster in (network.box, *clusterings(network, MOST_CLUSTERINGS)):
        parts: dict[int, list[int]] = {}
        for r in network.members:
            parts.setdefault(cluster[r], []).append(place[r])
        if 2 < len(parts) <= _MOST_MET:
            rows = max(map(len, parts.values()))
            yield {tuple(p[i % len(p)] for p in parts.values()) for i in range(rows)}
