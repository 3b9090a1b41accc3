"""How much every tree carries: a linear program of the trees that are known."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stretto.synth.general.hop_times import (
    Times,
    Top,
    Tree,
    hop_times,
    hops_at_once,
    levels,
)
from stretto.synth.network.model import Network
from stretto.synth.solvers import linprog, sparse

__all__ = ["TreeWeights", "WeighedTrees"]

_LITTLE = 0.01
"""Of the time that all takes: less latency than that is none."""
_DEPTHS, _APART = 8, 500
_IMPOSSIBLE = 2  # says HiGHS
_DEEP, _TIMED = 0.5, 0.2
"""What depth costs of the time, and where it is known when links are open: less than
all of it, since what goes early waits for nobody."""


@dataclass(frozen=True, slots=True)
class WeighedTrees:
    """What the linear program says of the trees that are known."""

    weights: Any
    prices: Any
    cost: float
    fullest: float
    """What the fullest link takes; where it is looked at when, what all takes."""


class TreeWeights:
    """The trees that are known, as columns."""

    def __init__(
        self,
        network: Network,
        roots: Sequence[Top],
        parts: Mapping[Top, float] | None,
        kinds: Sequence[bool],
        *,
        nbytes: int,
        hop_us: float,
        apart: bool,
    ) -> None:
        """Begin without trees. `hop_us` is the least latency of a hop."""
        self._roots, self._parts, self._kinds = roots, parts, kinds
        self._members = len(network.members)
        self._rates = np.array([float(k.rate) for k in network.links])
        self._alphas = np.array([float(k.alpha) for k in network.links])
        self._per_us = 1000.0 / nbytes
        little = hop_us * self._per_us * self._rates.max() < _LITTLE
        both = len(kinds) == 2
        self.has_phases = both and apart and not little
        """Whether sums and copies are apart, by a hop."""
        self._phase = hop_us * self._per_us * self.has_phases
        self.timed = not both and not little
        """Whether it is looked at when links can carry what trees put there."""
        self.trees: list[Tree] = []
        self._rows: list[int] = []
        self._columns: list[int] = []
        self._times: list[tuple[Times, Times]] = []
        """Of every link of a tree's ways, what is before it and behind it."""
        self._depth: list[Times] = []

    def add(self, tree: Tree) -> None:
        """Add a tree."""
        times, depth = hop_times(tree, self._cost)
        for (_, _, way), both in zip(tree.ways, times, strict=True):
            self._rows += way
            self._columns += [len(self.trees)] * len(way)
            self._times += [both] * len(way)
        self.trees.append(tree)
        self._depth.append(depth)

    def _cost(self, way: list[int]) -> Times:
        return float(self._alphas[way].sum()), float(1 / self._rates[way].min())

    def best(self, pieces: int) -> WeighedTrees:
        """Return the best weights of the known trees, cut into pieces.

        Where it counts when links are open, those of trees that are not too deep:
        however little goes down a tree, all of its depth is waited for.
        """
        chunk = 1 / (pieces * self._members)
        late, slow = np.array(self._depth).T
        depth = late * self._per_us + slow * chunk
        unit = depth.max() / _APART
        depths = levels(np.ceil(depth / unit) * unit, _DEPTHS)
        found = [
            weighed
            for most in (depths if self.timed else (math.inf,))
            if (weighed := self._weighed(depth, most, chunk)) is not None
        ]
        return min(found, key=lambda w: w.cost)

    def _moments(self, trees: Any, chunk: float) -> tuple[Any, Any]:
        """Return what is before the trees' hops and behind them, link by link."""
        if self.timed:
            late, slow = np.moveaxis(np.array(self._times), 2, 0)
            before, behind = (late * self._per_us + slow * chunk).T
            return before, behind
        sums = np.array([t.sums for t in self.trees])[trees]
        return ~sums * self._phase, sums * self._phase

    def _weighed(self, depth: Any, most: float, chunk: float) -> WeighedTrees | None:
        """Return the best weights of trees of at most some depth, if they will do."""
        some, count, rates = depth <= most + 1e-9, len(self.trees), self._rates
        at, trees = np.array(self._rows), np.array(self._columns)
        before, behind = self._moments(trees, chunk)
        here = np.flatnonzero(some[trees])
        shared = list(hops_at_once(at[here], before[here], behind[here]))
        hops = np.concatenate([here[mine] for mine, _ in shared])
        row = np.repeat(np.arange(len(shared)), [len(mine) for mine, _ in shared])
        every = np.arange(len(shared))
        equal, wanted = self._owned()
        width = equal.shape[1]
        full = sparse().csr_matrix(
            (
                np.concatenate((1 / rates[at[hops]], np.full(len(shared), -1.0))),
                (
                    np.concatenate((row, every)),
                    np.concatenate((trees[hops], np.full(len(shared), count))),
                ),
            ),
            shape=(len(shared), width),
        )
        price, upper = np.zeros(width), np.full(width, math.inf)
        price[:count] = depth * (_TIMED if self.timed else _DEEP)
        price[count] = 1.0
        upper[:count][~some] = 0.0
        result = linprog(
            price,
            A_ub=full,
            b_ub=[-closed for _, closed in shared],
            A_eq=equal,
            b_eq=wanted,
            bounds=np.column_stack((np.zeros(width), upper)),
            method="highs",
        )
        if result.status == _IMPOSSIBLE and not some.all():
            return None
        if result.status != 0:
            raise ArithmeticError(result.message)
        assert math.isfinite(result.fun)
        of_row = at[[here[mine[0]] for mine, _ in shared]]
        dual = np.maximum(0.0, -result.ineqlin.marginals)
        prices = np.bincount(of_row, dual, minlength=len(rates)) / rates
        taken = np.bincount(at, result.x[trees] / rates[at], minlength=len(rates))
        fullest = float(result.x[count] if self.timed else taken.max())
        return WeighedTrees(result.x[:count], prices, result.fun, fullest)

    def _owned(self) -> tuple[Any, Any]:
        """Return rows for what the trees of every root carry together, and how much.

        Where roots are free their parts are columns of their own, behind the fullest.
        """
        count, kinds, many = len(self.trees), self._kinds, len(self._roots)
        place = {r: i for i, r in enumerate(self._roots)}
        free = self._parts is None
        width = count + 1 + (many if free else 0)
        owner = [
            (kinds.index(t.sums) * many + place[t.top], i, 1.0)
            for i, t in enumerate(self.trees)
        ]
        wanted = np.zeros(len(kinds) * many)
        if self._parts is None:
            owner += [
                (k * many + i, count + 1 + i, -1.0)
                for k in range(len(kinds))
                for i in range(many)
            ]
            owner += [(len(wanted), count + 1 + i, 1.0) for i in range(many)]
            wanted = np.append(wanted, 1.0)
        else:
            for k in range(len(kinds)):
                for r, part in self._parts.items():
                    wanted[k * many + place[r]] = part
        at, which, what = zip(*owner, strict=True)
        shape = len(wanted), width
        return sparse().csr_matrix((what, (at, which)), shape=shape), wanted
