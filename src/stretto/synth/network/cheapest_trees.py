"""The cheapest tree from a root to all ranks, or to some of them.

To all: Chu and Liu's and Edmonds' algorithm on the matrix of costs, exact. To some, by
way of others: the cheapest is hard to find, so trees that grow by the cheapest path to
whoever is missing are made again, exactly, over the ranks that they touch.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

__all__ = ["MOST_EXACT", "Edges", "grown", "shallow", "spanning", "steiner"]

Edges: TypeAlias = list[tuple[int, int]]
"""From and to, those near the root first."""

_FAR = 1e30
MOST_EXACT = 9
"""Up to so many members the cheapest tree by way of others is found exactly."""


def spanning(cost: Any, root: int) -> Edges:
    """Return the cheapest tree from the root to every rank."""
    matrix = np.where(np.isfinite(cost), cost, _FAR)
    np.fill_diagonal(matrix, _FAR)
    matrix[:, root] = _FAR
    return grown(_parents(matrix, root), root)


def _parents(cost: Any, root: int) -> list[int]:
    """Return every node's parent in the cheapest tree; the root's means nothing.

    Everybody takes the cheapest parent. Nodes that are one another's parents in a ring
    become one node, which is entered where that costs least more than the ring's edge.
    """
    best = [int(v) for v in np.argmin(cost, axis=0)]
    rings = _rings(best, root)
    if not rings:
        return best
    label = [-1] * len(cost)
    for number, ring in enumerate(rings):
        for v in ring:
            label[v] = number
    count = len(rings)
    for v, known in enumerate(label):
        if known < 0:
            label[v], count = count, count + 1
    dearer = cost.copy()
    for v in (v for ring in rings for v in ring):
        dearer[:, v] -= cost[best[v], v]
    order = np.argsort(label, kind="stable")
    starts = np.searchsorted(np.array(label)[order], np.arange(count))
    small = np.minimum.reduceat(dearer[order][:, order], starts, axis=0)
    small = np.minimum.reduceat(small, starts, axis=1)
    np.fill_diagonal(small, _FAR)
    small[:, label[root]] = _FAR
    found = _parents(small, label[root])
    groups = np.split(order, starts[1:])
    parent = list(best)
    for b in range(count):
        if b != label[root]:
            ends, targets = groups[found[b]], groups[b]
            at = int(np.argmin(dearer[np.ix_(ends, targets)]))
            u, v = divmod(at, len(targets))
            parent[int(targets[v])] = int(ends[u])
    return parent


def _rings(best: Sequence[int], root: int) -> list[list[int]]:
    """Return the rings of nodes that are one another's parents."""
    state = [-1] * len(best)
    state[root] = len(best)
    rings = []
    for start in range(len(best)):
        v = start
        while state[v] < 0:
            state[v] = start
            v = best[v]
        if state[v] == start and v != root:
            ring = [v]
            while (u := best[ring[-1]]) != v:
                ring.append(u)
            rings.append(ring)
            for u in ring:
                state[u] = len(best)
    return rings


def grown(parent: Sequence[int], root: int) -> Edges:
    """Return the edges that parents mean, those near the root first."""
    below: dict[int, list[int]] = {}
    for v, p in enumerate(parent):
        if v != root and p >= 0:
            below.setdefault(p, []).append(v)
    queue = [root]
    edges = []
    for u in queue:
        for v in below.get(u, ()):
            edges.append((u, v))
            queue.append(v)
    return edges


def shallow(cost: Any, root: int, members: Sequence[int], deep: float) -> Edges:
    """Return a tree that weighs its cost against the way from the root.

    With `deep` 0 what is nearest to the tree is joined next; with 1 every rank is
    reached by its shortest path. Ranks that nobody needs are left out.
    """
    n = len(cost)
    far = np.full(n, np.inf)
    key = np.full(n, np.inf)
    parent = [-1] * n
    done = np.zeros(n, dtype=bool)
    key[root] = far[root] = 0.0
    for _ in range(n):
        v = int(np.argmin(np.where(done, np.inf, key)))
        if done[v] or not np.isfinite(key[v]):
            break
        done[v] = True
        offer = deep * far[v] + cost[v]
        closer = ~done & (offer < key)
        key[closer] = offer[closer]
        far[closer] = far[v] + cost[v][closer]
        for w in np.flatnonzero(closer).tolist():
            parent[w] = v
    return _pruned(grown(parent, root), set(members))


def steiner(
    cost: Any, root: int, members: Sequence[int], *, quick: bool = False
) -> Edges:
    """Return a cheap tree to the members by way of any rank; of few, the cheapest.

    With `quick` it is not looked for how cheap a tree can be.
    """
    if len(members) <= MOST_EXACT and not quick:
        return _cheapest(cost, root, [v for v in members if v != root])
    best: tuple[float, Edges] | None = None
    for deep in (0.0, 1.0):
        for edges in (_joined(cost, root, members, deep),):
            inside = sorted({root, *(v for _, v in edges)})
            part = cost[np.ix_(inside, inside)]
            exact = spanning(part, inside.index(root))
            again = [(inside[u], inside[v]) for u, v in exact]
            for one in (edges, _pruned(again, set(members))):
                total = sum(float(cost[u, v]) for u, v in one)
                if best is None or total < best[0]:
                    best = total, one
    assert best is not None  # two trees were made
    return best[1]


def _joined(cost: Any, root: int, members: Sequence[int], deep: float) -> Edges:
    """Return a tree that grows by the cheapest path to a member that is missing."""
    n = len(cost)
    parent = [-1] * n
    away = np.full(n, np.inf)
    """How far a rank in the tree is from the root, in its share."""
    away[root] = 0.0
    missing = set(members) - {root}
    while missing:
        inside = np.isfinite(away)
        dist = np.full(n, np.inf)
        dist[inside] = deep * away[inside]
        before = [-1] * n
        done = np.zeros(n, dtype=bool)
        while True:
            v = int(np.argmin(np.where(done, np.inf, dist)))
            if done[v] or not np.isfinite(dist[v]):
                return []
            done[v] = True
            if v in missing:
                break
            offer = dist[v] + cost[v]
            closer = ~done & ~inside & (offer < dist)
            dist[closer] = offer[closer]
            for w in np.flatnonzero(closer).tolist():
                before[w] = v
        path = [v]
        while before[path[-1]] >= 0:
            path.append(before[path[-1]])
        for u, w in zip(path[:0:-1], path[-2::-1], strict=True):
            parent[w] = u
            away[w] = away[u] + cost[u, w]
        missing -= set(path)
    return _pruned(grown(parent, root), set(members))


def _pruned(edges: Edges, members: set[int]) -> Edges:
    """Return a tree without the branches that end where nobody wants anything."""
    needed = set(members)
    for u, v in reversed(edges):
        if v in needed:
            needed.add(u)
    return [(u, v) for u, v in edges if v in needed]


def _cheapest(cost: Any, root: int, ends: Sequence[int]) -> Edges:
    """Return the cheapest tree to a few ranks, by Dreyfus' and Wagner's sums.

    For every set of ends and every rank: what the cheapest tree from there costs. It
    is two trees of parts of the set, or one edge and a tree.
    """
    n = len(cost)
    step = np.where(np.isfinite(cost), cost, _FAR)
    np.fill_diagonal(step, 0.0)
    away, via = _closure(step)
    whole = (1 << len(ends)) - 1
    ranks = np.arange(n)
    tree = np.zeros((whole + 1, n))
    how: list[Any] = [None] * (whole + 1)
    for i, v in enumerate(ends):
        tree[1 << i] = away[:, v]
    for s, parts in enumerate(_parts(len(ends))):
        if len(parts):
            both = tree[parts] + tree[s ^ parts]
            pick = np.argmin(both, axis=0)
            moved = away + both[pick, ranks][None, :]
            to = np.argmin(moved, axis=1)
            tree[s] = moved[ranks, to]
            how[s] = (to, parts[pick])
    parent = [-1] * n
    stack = [(whole, root)]
    edges: set[tuple[int, int]] = set()
    while stack:
        s, u = stack.pop()
        if how[s] is None:
            edges.update(_walked(via, u, ends[s.bit_length() - 1]))
            continue
        to, split = int(how[s][0][u]), how[s][1]
        edges.update(_walked(via, u, to))
        stack += [(int(split[to]), to), (s ^ int(split[to]), to)]
    inside = sorted({root, *(v for e in edges for v in e)})
    if len(edges) == len(inside) - 1:
        for u, v in edges:
            parent[v] = u
        return grown(parent, root)
    part = cost[np.ix_(inside, inside)]
    exact = spanning(part, inside.index(root))
    return _pruned([(inside[u], inside[v]) for u, v in exact], {root, *ends})


@functools.cache
def _parts(count: int) -> list[Any]:
    """Return, for every set of so many, the parts that hold its first, as bits."""
    found = []
    for s in range(1 << count):
        low, part, parts = s & -s, (s - 1) & s, []
        while part:
            if part & low:
                parts.append(part)
            part = (part - 1) & s
        found.append(np.array(parts, dtype=int))
    return found


def _closure(step: Any) -> tuple[Any, Any]:
    """Return the cheapest ways between all ranks, and the first rank on them."""
    n = len(step)
    away = step.copy()
    via = np.tile(np.arange(n)[None, :], (n, 1))
    for k in range(n):
        over = away[:, k : k + 1] + away[k : k + 1, :]
        better = over < away
        away = np.where(better, over, away)
        via = np.where(better, via[:, k : k + 1], via)
    return away, via


def _walked(via: Any, u: int, v: int) -> Edges:
    edges = []
    while u != v:
        w = int(via[u, v])
        edges.append((u, w))
        u = w
    return edges
