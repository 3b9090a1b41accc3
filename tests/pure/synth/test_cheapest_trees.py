"""The cheapest trees of a network: to all of its nodes, and to some of them."""

import itertools

import numpy as np

from stretto.synth.network.cheapest_trees import spanning, steiner


def test_the_cheapest_tree_is_found():
    """Against all trees of a few ranks."""
    chance = np.random.default_rng(5)
    for _ in range(30):
        n = 5
        cost = chance.integers(1, 12, (n, n)).astype(float)
        root = int(chance.integers(n))
        others = [v for v in range(n) if v != root]
        least = {}
        for parents in itertools.product(range(n), repeat=n - 1):
            parent = dict(zip(others, parents, strict=True))
            total = sum(cost[p, v] for v, p in parent.items())
            inside = frozenset({root, *others})
            if all(_reaches(parent, v, root) for v in others):
                least[inside] = min(total, least.get(inside, np.inf))
        edges = spanning(cost, root)

        assert {v for _, v in edges} == set(others)
        assert sum(cost[u, v] for u, v in edges) == least[frozenset(range(n))]


def _reaches(parent, node, root):
    for _ in range(len(parent) + 1):
        if node == root:
            return True
        node = parent[node]
    return False


def test_the_cheapest_tree_to_some_is_no_dearer_than_any_subset_of_relays():
    """Exact for few members: every set of relays, with its cheapest tree, is tried."""
    chance = np.random.default_rng(6)
    for _ in range(30):
        n, members = 6, [0, 2, 5]
        cost = chance.integers(1, 20, (n, n)).astype(float)
        least = np.inf
        for size in range(4):
            for relays in itertools.combinations([1, 3, 4], size):
                inside = sorted([*members, *relays])
                part = cost[np.ix_(inside, inside)]
                edges = spanning(part, 0)
                least = min(least, sum(part[u, v] for u, v in edges))
        edges = steiner(cost, 0, members)

        assert set(members) <= {0, *(v for _, v in edges)}
        assert sum(cost[u, v] for u, v in edges) == least
