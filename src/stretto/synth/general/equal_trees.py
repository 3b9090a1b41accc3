"""Few trees from every root, all of equal weight: simple ones, alike everywhere.

A linear program mixes many trees, and where every port has to be busy all the time
what they send waits for one another, whatever the order. One tree from every root
loses less, and least where all look alike: so a tree of one rank is carried to the
others by the symmetries of the machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress

from stretto.errors import TopologyError
from stretto.synth.direct.trees import Forest, pack_trees
from stretto.synth.general.hop_times import Tree
from stretto.synth.general.tree_packing import Packing
from stretto.synth.network.model import Network
from stretto.synth.network.symmetry import Symmetry
from stretto.synth.schedules.schedule import Demand

__all__ = ["equal_trees"]

_MOST, _KEPT = 3, 8
"""Trees from every root; packings that are kept."""
_NEAR = 1.03


def equal_trees(
    demand: Demand, symmetry: Symmetry, goal: float, check: Callable[[], None]
) -> list[Packing]:
    """Return packings whose fullest link is near a goal, the best first.

    They have as few trees from every root as that allows, or there are none.
    """
    found: dict[tuple[float, int, frozenset[Tree]], Packing] = {}
    with suppress(TopologyError):  # an unbalanced switch: others serve
        for count in range(1, _MOST + 1):
            for some in _packed(demand, symmetry, count, check):
                packing = _of(demand.network, some)
                if packing.fullest <= goal * _NEAR:
                    hops = sum(len(way) for t in some for _, _, way in t.ways)
                    key = round(packing.fullest / goal, 6), hops, frozenset(some)
                    found.setdefault(key, packing)
            if found:
                break
    best = sorted(found, key=lambda key: key[:2])
    return [found[key] for key in best[:_KEPT]]


def _packed(
    demand: Demand, symmetry: Symmetry, count: int, check: Callable[[], None]
) -> Iterator[tuple[Tree, ...]]:
    """Yield trees as they are packed, then those of one root for all that are alike."""
    network, root = demand.network, demand.root if demand.rooted else None
    both = []
    for sums in (False, True):
        if demand.combines if sums else _spreads(demand):
            way = network.reversed if sums else network
            forest = pack_trees(way, root=root, trees=count, check=check)
            both.append(_trees(network, forest, sums=sums))
    yield tuple(t for trees in both for t in trees)
    if symmetry.order == 1 or root is not None:
        return
    orbits: dict[int, list[int]] = {}
    for first in symmetry.representatives:
        orbits[first] = sorted({g[first] for g in symmetry.nodes})
    for place in range(symmetry.order):
        chosen = {orbit[place % len(orbit)] for orbit in orbits.values()}
        yield tuple(
            _image(t, g, links)
            for trees in both
            for t in trees
            if t.top[0] in chosen
            for g, links in zip(symmetry.nodes, symmetry.links, strict=True)
        )


def _spreads(demand: Demand) -> bool:
    return not demand.combines or demand.collective == "all_reduce"


def _trees(network: Network, forest: Forest, *, sums: bool) -> tuple[Tree, ...]:
    """Return packed trees; sums flow the other way."""
    found = []
    for root, _, paths in forest.edges:
        ways = []
        for path in paths:
            way = path[::-1] if sums else path
            ends = network.links[way[0]].src, network.links[way[-1]].dst
            ways.append((*ends, way))
        found.append(Tree(tuple(ways), sums, (root,)))
    return tuple(found)


def _image(tree: Tree, nodes: tuple[int, ...], links: tuple[int, ...]) -> Tree:
    """Return where a symmetry carries a tree."""
    ways = tuple(
        (nodes[u], nodes[v], tuple(links[e] for e in way)) for u, v, way in tree.ways
    )
    return Tree(ways, tree.sums, tuple(nodes[r] for r in tree.top))


def _of(network: Network, trees: tuple[Tree, ...]) -> Packing:
    """Return trees of equal weight as a packing: of each kind, one unit in all."""
    kinds = [sum(t.sums == sums for t in trees) for sums in (False, True)]
    weights = tuple(1 / kinds[t.sums] for t in trees)
    packing = Packing(trees=trees, weights=weights, fullest=0.0, least=0.0)
    load = sum(w * row for w, row in zip(weights, packing.loads(network), strict=True))
    return Packing(trees=trees, weights=weights, fullest=float(load.max()), least=0.0)
