"""Symmetries: permutations of ranks and switches that map the network to itself.

A group is used only when no member but the identity fixes a rank: then every rank is
the image of exactly one representative under exactly one member, what is planned for
the representatives holds for all, and the images of a transfer run at the same time on
the images of its links. A link that members of the group map to itself carries several
images, one after another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from stretto.synth.network.model import Network

__all__ = ["Symmetry", "find_symmetry", "symmetry_of", "trivial"]

Permutation = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Symmetry:
    """A group of permutations that acts freely on the ranks."""

    nodes: tuple[Permutation, ...]
    """The members, as permutations of nodes; the identity first."""
    links: tuple[Permutation, ...]
    """The same members, as permutations of links."""
    representatives: tuple[int, ...]
    """One taking-part rank of every orbit."""
    link_orbit: tuple[int, ...]
    """The smallest link of every link's orbit."""
    images: tuple[int, ...]
    """How many images of a transfer over a link cross that same link."""

    @property
    def order(self) -> int:
        """Return the number of members."""
        return len(self.nodes)


def trivial(network: Network) -> Symmetry:
    """Return the group of nothing but the identity."""
    return _group(network, [tuple(range(network.num_nodes))])


def find_symmetry(
    network: Network,
    *,
    most: int | None = None,
    keep: Callable[[Permutation], bool] | None = None,
) -> Symmetry:
    """Return a large group of symmetries that acts freely, of order `most` at most.

    `keep` may refuse permutations of the ranks that the network has as symmetries.
    """
    identity = tuple(range(network.num_nodes))
    members: list[Permutation] = [identity]
    for ranks in _candidates(network):
        step = _extend(network, ranks)
        if step is None or step in members or (keep is not None and not keep(step)):
            continue
        grown = _closure([*members, step], network.num_ranks, most)
        if grown is not None and len(grown) > len(members):
            members = grown
    return _group(network, members)


def _group(network: Network, members: Sequence[Permutation]) -> Symmetry:
    index = {(k.src, k.dst): i for i, k in enumerate(network.links)}
    links = tuple(
        tuple(index[g[k.src], g[k.dst]] for k in network.links) for g in members
    )
    orbit = list(range(len(network.links)))
    for g in links:
        for i, image in enumerate(g):
            orbit[image] = min(orbit[image], i)
    sizes = Counter(orbit)
    seen: set[int] = set()
    representatives = []
    for rank in network.members:
        if rank not in seen:
            representatives.append(rank)
            seen.update(g[rank] for g in members)
    return Symmetry(
        nodes=tuple(members),
        links=links,
        representatives=tuple(representatives),
        link_orbit=tuple(orbit),
        images=tuple(len(members) // sizes[o] for o in orbit),
    )


def _candidates(network: Network) -> Iterator[Permutation]:
    """Yield what the machine names, then rotations by `o` inside blocks of `z`."""
    n = network.num_ranks
    yield from network.generators
    for z in range(2, n + 1):
        if n % z == 0:
            for o in range(1, z):
                if z % o == 0:
                    yield tuple((r % z + o) % z + r // z * z for r in range(n))


def _closure(
    generators: Sequence[Permutation], num_ranks: int, most: int | None
) -> list[Permutation] | None:
    """Return the group that these generate, or None when it fixes a rank."""
    members = {generators[0]: None}
    queue = [generators[0]]
    while queue:
        g = queue.pop()
        for step in generators[1:]:
            product = tuple(step[v] for v in g)
            if product in members:
                continue
            if any(product[r] == r for r in range(num_ranks)):
                return None
            members[product] = None
            queue.append(product)
            if len(members) > min(num_ranks, most or num_ranks):
                return None
    return list(members)


def _extend(network: Network, ranks: Permutation) -> Permutation | None:
    """Return the permutation of all nodes, or None when it is no symmetry.

    A switch goes to the switch that is joined alike to the nodes already placed.
    """
    n = network.num_ranks
    if {ranks[r] for r in network.members} != set(network.members):
        return None
    ports: dict[int, list[tuple[int, bool, object]]] = {}
    for k in network.links:
        ports.setdefault(k.src, []).append((k.dst, True, (k.rate, k.alpha)))
        ports.setdefault(k.dst, []).append((k.src, False, (k.rate, k.alpha)))
    image = dict(enumerate(ranks))
    left = set(range(n, network.num_nodes))
    placed = set(range(n))
    while left:
        here = {v: [p for p in ports.get(v, []) if p[0] in placed] for v in left}
        here = {v: p for v, p in here.items() if p}
        targets = {frozenset(p): v for v, p in sorted(here.items(), reverse=True)}
        moved = {}
        for v, joined in sorted(here.items()):
            wanted = frozenset((image[a], out, what) for a, out, what in joined)
            target = targets.pop(wanted, None)
            if target is None:
                return None
            moved[v] = target
        if not moved:
            return None
        image.update(moved)
        placed |= moved.keys()
        left -= moved.keys()
    whole = tuple(image[v] for v in range(network.num_nodes))
    speeds = {(k.src, k.dst): (k.rate, k.alpha) for k in network.links}
    for (a, b), speed in speeds.items():
        if speeds.get((whole[a], whole[b])) != speed:
            return None
    return whole


def symmetry_of(network: Network, turns: Sequence[Permutation]) -> Symmetry | None:
    """Return the group that these permutations of ranks generate, if it serves."""
    steps = [_extend(network, ranks) for ranks in turns]
    identity = tuple(range(network.num_nodes))
    known = [step for step in steps if step is not None]
    if len(known) < len(steps):
        return None
    members = _closure([identity, *known], network.num_ranks, None)
    return None if members is None else _group(network, members)
