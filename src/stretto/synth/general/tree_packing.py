"""Trees that share a network as well as can be: an exact fractional packing.

Every root has some trees, each with a weight, so that the fullest link is as empty as
can be: trees along which data spread, trees along which sums flow, or both. A linear
program weighs the trees that are known; its prices of links say which others would be
cheap, and those are added until no root has a cheaper one. Any prices prove a bound
for trees: links carry at least the cheapest ones.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any

import numpy as np

from stretto.synth.clock import SearchClock
from stretto.synth.general.hop_times import Top, Tree, Way
from stretto.synth.general.partners import Lane, Lanes
from stretto.synth.general.tree_weights import TreeWeights
from stretto.synth.network.cheapest_trees import Edges, shallow, spanning, steiner
from stretto.synth.network.hops import HopGraph
from stretto.synth.network.model import Network

__all__ = ["FILLED", "VARIED", "Packing", "Pool"]

_CLOSE = 1.0005
_QUICK = -1.0
FILLED, VARIED = 4, 32
"""Trees of every root before the first prices; where it counts when links are open,
which prices do not say."""
_GAINS, _PATIENCE = 0.998, 6
"""What counts as better, and how long it may be waited for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """Trees and how much each of them carries, of one unit in all."""

    trees: tuple[Tree, ...]
    weights: tuple[float, ...]
    fullest: float
    """What the fullest link takes, in units of its rate."""
    least: float
    """What no packing of trees goes below; 0 when that is not known."""

    @property
    def flows(self) -> dict[Way, float]:
        """Return what flows over every way between two ranks."""
        flows: dict[Way, float] = {}
        for tree, weight in zip(self.trees, self.weights, strict=True):
            for _, _, way in tree.ways:
                flows[way] = flows.get(way, 0.0) + weight
        return flows

    def loads(self, network: Network) -> Any:
        """Return what one unit down every tree takes of every link."""
        loads = np.zeros((len(self.trees), len(network.links)))
        for i, tree in enumerate(self.trees):
            for _, _, way in tree.ways:
                for e in way:
                    loads[i, e] += 1 / float(network.links[e].rate)
        return loads


class Pool:
    """The trees that are known."""

    def __init__(
        self,
        network: Network,
        parts: Mapping[int, float] | None,
        *,
        spread: bool,
        sums: bool,
        nbytes: int,
        lanes: tuple[Lane, ...] | None = None,
        apart: bool = True,
        meetings: Sequence[Top] = (),
    ) -> None:
        """Begin without trees; `apart`: sums and copies have times of their own."""
        self._network, self._nbytes = network, nbytes
        self._parts: dict[Top, float] | None = None
        if parts:
            self._parts = {(r,): part for r, part in parts.items()}
        self._reach = HopGraph(network) if lanes is None else Lanes(network, lanes)
        self._kinds = [kind for kind, asked in ((False, spread), (True, sums)) if asked]
        self._rates = np.array([float(k.rate) for k in network.links])
        alphas = np.array([float(k.alpha) for k in network.links])
        self._confined = lanes is not None
        self._whole = len(network.members) == network.num_ranks
        roots = sorted(parts) if parts else range(network.num_ranks)
        self.roots = [*((r,) for r in roots), *meetings]
        nearest = self._reach.hops(alphas + 1e-9).cost.min(
            where=~np.eye(network.num_ranks, dtype=bool), initial=np.inf
        )
        self._weights = TreeWeights(
            network,
            self.roots,
            self._parts,
            self._kinds,
            nbytes=nbytes,
            hop_us=float(nearest),
            apart=apart,
        )
        self.trees = self._weights.trees
        self.timed, self.has_phases = self._weights.timed, self._weights.has_phases
        self._known: set[tuple[Top, bool, frozenset[Way]]] = set()
        self.least = 0.0
        self.fullest = math.inf
        """What the fullest link takes, when trees were last looked for; where `timed`,
        what all takes."""
        self._filled = 0
        self._load = np.zeros(len(self._rates))
        """What every link takes of the trees that were filled in."""
        self._center: Any = None

    def fill(self, turns: int, clock: SearchClock) -> None:
        """Add trees that avoid what those before them took, deep ones and shallow.

        Turns count from the first that there ever was; the clock is not asked in two.
        """
        if not self.trees:
            self._flat()
        rates, load = self._rates, self._load
        unit = {r: 1 / len(self.roots) for r in self.roots} | dict(self._parts or {})
        for turn in range(self._filled, turns):
            if turn > 1:
                clock.check()
            steep = min(30.0, 4.0 + 2.0 * turn)
            deep = (_QUICK, 1.0, 0.3, _QUICK)[turn % 4]
            for root in self.roots:
                fullness = load / rates
                top = float(fullness.max())
                prices = 1 / rates
                if top:
                    prices *= np.exp(steep * (fullness / top - 1)) + 1e-3
                hops = self._reach.hops(prices)
                for kind in self._kinds:
                    tree = self._tree(hops, root, kind, deep)
                    if tree is None:
                        continue
                    self._add(tree)
                    for _, _, way in tree.ways:
                        for e in way:
                            load[e] += unit[root]
            self._filled = turn + 1

    @property
    def is_complete(self) -> bool:
        """Return whether trees join everybody, which few partners may not allow."""
        known = {(tree.top, tree.sums) for tree in self.trees}
        joined = [all((r, kind) in known for kind in self._kinds) for r in self.roots]
        return any(joined) if self._parts is None else all(joined)

    def _flat(self) -> None:
        """Add the trees of least latency, and of few hops."""
        links = self._network.links
        part = self._nbytes / len(self._network.members) / 1000
        for scale in (0.0, 1 / 16, 1.0):
            prices = np.array(
                [float(k.alpha) + (part * scale + 1e-6) / float(k.rate) for k in links]
            )
            hops = self._reach.hops(prices)
            for root in self.roots:
                for kind in self._kinds:
                    for deep in (1.0, 0.5):
                        self._add(self._tree(hops, root, kind, deep))

    def _tree(self, hops: Any, top: Top, sums: bool, deep: float | None) -> Tree | None:
        """Return a tree, cheap or shallow; None where the root cannot reach somebody.

        That may be where it relays, and its ports have few partners.
        """
        cost = hops.cost.T if sums else hops.cost
        members, (root, *meets) = self._network.members, top
        if meets:  # they are one step apart, and as good as one
            apart = np.isinf(cost[np.ix_(top, top)]) & ~np.eye(len(top), dtype=bool)
            if apart.any():
                return None
            cost = cost.copy()
            cost[:, meets] = np.inf
            cost[root, meets] = 1e-9
        if deep == _QUICK and not self._whole:
            edges: Edges = steiner(cost, root, members, quick=True)
        elif deep is not None and deep != _QUICK:
            edges = shallow(cost, root, members, deep)
        elif self._whole:
            edges = spanning(cost, root)
        else:
            edges = steiner(cost, root, members)
        joined = {root, *(v for _, v in edges)}
        if not joined.issuperset(members) or any(
            not np.isfinite(cost[u, v]) for u, v in edges
        ):
            return None
        pairs = [(v, u) if sums else (u, v) for u, v in edges]
        pairs += [] if sums else permutations(meets, 2)
        return Tree(tuple((u, v, hops.way(u, v)) for u, v in pairs), sums, top)

    def _add(self, tree: Tree | None) -> bool:
        if tree is None:
            return False
        key = tree.top, tree.sums, frozenset(w for _, _, w in tree.ways)
        if key in self._known:
            return False
        self._known.add(key)
        self._weights.add(tree)
        return True

    def grow(self, clock: SearchClock, goal: float, turns: int) -> bool:
        """Add trees, so many times or until the fullest link meets the goal.

        Return whether there may be better trees still. When the time is up, that is
        raised: what was added until then depends on the computer.
        """
        self.fill(VARIED if self.timed else FILLED, clock)
        best = self._weights.best(64)
        self.fullest = best.fullest
        center = best.prices if self._center is None else self._center
        slow, mark = 0, best.fullest
        for _ in range(turns):
            if best.fullest <= max(goal, self.least) * _CLOSE:
                return False
            if slow > _PATIENCE:
                break
            clock.check()
            fresh = self._price(0.5 * best.prices + 0.5 * center)
            if not fresh:
                fresh = self._price(best.prices)
            if not fresh:
                return False
            best = self._weights.best(64)
            self.fullest = best.fullest
            center = 0.5 * center + 0.5 * best.prices
            slow += 1
            if best.fullest < mark * _GAINS:
                slow, mark = 0, best.fullest
        self._center = center
        return True

    def packing(self, pieces: int) -> Packing:
        """Return the best packing of so many pieces a part: the fewer, the flatter."""
        best = self._weights.best(pieces)
        kept = [i for i, w in enumerate(best.weights) if w > 1e-9]
        return Packing(
            trees=tuple(self.trees[i] for i in kept),
            weights=tuple(float(best.weights[i]) for i in kept),
            fullest=best.fullest,
            least=self.least,
        )

    def _price(self, prices: Any) -> int:
        """Add every root's cheapest trees for some prices; note what they prove."""
        rates = self._rates
        volume = float(prices @ rates)
        hops = self._reach.hops(prices + 1e-7 * volume / len(rates) / rates)
        fresh = 0
        cheapest = {}
        for root in self.roots:
            cost = 0.0
            for kind in self._kinds:
                tree = self._tree(hops, root, kind, None)
                ways = [] if tree is None else tree.ways
                cost += sum(prices[e] for _, _, way in ways for e in way)
                cost += math.inf if tree is None else 0.0
                fresh += self._add(tree)
            cheapest[root] = cost
        if self._whole and volume and not self._confined:
            if self._parts is None:
                worth = min(cheapest.values())
            else:
                worth = sum(cheapest[r] * part for r, part in self._parts.items())
            self.least = max(self.least, worth / volume * (1 - 1e-6))
        return fresh
