"""Who may meet: two ranks that each add up what is near, and tell each other.

A sum with one root goes up a tree and down again. Where the last step up and the first
one down join the same two ranks, both can be at once: each sends what it has added up
without the other, and then both have all. That is a step of latency less, at the middle
of the machine, where steps are the longest.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from stretto.synth.network.hops import HopGraph
from stretto.synth.network.model import Network
from stretto.synth.solvers import csgraph

__all__ = ["meetings"]

_NEAR = 1.05
_FAR = 1.49
"""Times as long as by one root alone, if latency were all: where all steps are alike it
is 1.5 times."""


def meetings(network: Network) -> list[tuple[int, int]]:
    """Return pairs that know all soonest, about one for each member; or nobody.

    Everybody is as often in a pair as can be, so that all links are used.
    """
    members = np.array(network.members)
    late = np.array([float(k.alpha) for k in network.links])
    step = HopGraph(network).hops(late + 1e-9).cost
    away = csgraph().shortest_path(np.where(np.isfinite(step), step, 0.0))
    away, step = (np.maximum(x, x.T)[np.ix_(members, members)] for x in (away, step))
    np.fill_diagonal(away, 0.0)
    takes = {
        (a, b): 2 * float(np.minimum(away[a], away[b]).max()) + float(step[a, b])
        for a in range(len(members))
        for b in range(a)
        if np.isfinite(step[a, b])
    }
    alone = 2 * float(away.max(axis=1).min())
    least = min(takes.values(), default=alone)
    if least >= alone * _FAR:
        return []
    near = [pair for pair, us in takes.items() if us <= least * _NEAR]
    used: Counter[int] = Counter()
    found: list[tuple[int, int]] = []
    while near and len(found) < len(members):
        a, b = min(near, key=lambda p: (used[p[0]] + used[p[1]], takes[p], p))
        near.remove((a, b))
        used.update((a, b))
        found.append((int(members[b]), int(members[a])))
    return found
