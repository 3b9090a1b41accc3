"""Pieces down trees: what every piece of a packing of trees has to do."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from stretto.synth.bounds import Bound
from stretto.synth.clock import Clock
from stretto.synth.packing import FILLED, Packing, Pool, Tree
from stretto.synth.pieces import Owner, rounded, shared_out
from stretto.synth.schedule import Chunk, Demand, Move
from stretto.synth.works import Works

__all__ = ["Grove"]

_AT_ONCE, _FEW_RANKS, _TURNS = 4, 40, 24
"""Trees of every root before the first plan, and prices for each time it gets better.
"""
_FEW = (0.0, 0.03, 0.1, 0.3)
"""What it may cost, of the whole, that trees share their ways: kinds of trees."""


class Grove:
    """The trees of a demand whose data spread, or whose sums flow, or both."""

    def __init__(self, demand: Demand, limit: Bound, clock: Clock) -> None:
        self._demand, self._clock = demand, clock
        network = demand.network
        parts: dict[int, float] | None
        match demand.collective:
            case "all_gather" | "reduce_scatter":
                members = network.members
                units = demand.weights or (1,) * len(members)
                parts = {r: u / sum(units) for r, u in zip(members, units, strict=True)}
            case "broadcast" | "reduce":
                parts = {demand.root: 1.0}
            case _:
                parts = None
        self._pool = Pool(
            network,
            parts,
            spread=not demand.combines or demand.collective == "all_reduce",
            sums=demand.combines,
            nbytes=demand.nbytes,
        )
        self._goal = 1 / float(limit.algbw)
        self._filled, self.open = (
            _AT_ONCE if network.num_ranks <= _FEW_RANKS else 2,
            True,
        )
        self._pool.fill(self._filled, Clock(None))  # one plan there will be
        self._packings: dict[tuple[int, float], Packing] = {}

    def improve(self) -> bool:
        """Look for better trees; return whether there are any."""
        if not self.open:
            return False
        if self._filled < FILLED:
            self._filled *= 2
            self._pool.fill(min(self._filled, FILLED), self._clock)
        else:
            self.open = self._pool.grow(self._clock, self._goal, _TURNS)
        self._packings.clear()
        return True

    @property
    def variants(self) -> int:
        """Return how many kinds of trees there are: with ever fewer ways."""
        network = self._demand.network
        switched = network.num_nodes > network.num_ranks
        return len(_FEW) if switched else 1

    def _packing(self, split: int, variant: int) -> Packing:
        """Return the trees for so many pieces: the fewer, the shallower."""
        scale = min(s for s in (4, 16, 64, 1 << 30) if split <= s)
        key = scale, _FEW[variant]
        if key not in self._packings:
            self._packings[key] = self._pool.packing(min(scale, 256), key[1])
        return self._packings[key]

    def prepare(self, split: int, variant: int) -> None:
        """Find the trees for such a cut, if they are not known yet."""
        self._packing(split, variant)

    def works(self, split: int, seed: int, variant: int = 0) -> Works:
        """Return all transfers of a cut into so many pieces a part."""
        packing = self._packing(split, variant)
        demand = replace(self._demand, split=split)
        chunks = list(demand.chunks())
        by_root: dict[tuple[int, bool], list[int]] = defaultdict(list)
        for i, tree in enumerate(packing.trees):
            by_root[tree.root, tree.sums].append(i)
        given = _given(demand, packing, by_root, chunks)
        owners = []
        for (root, _), routes in sorted(by_root.items()):
            if root in given:
                total = sum(packing.weights[i] for i in routes)
                owners.append(
                    Owner(
                        routes=tuple(routes),
                        weights=tuple(packing.weights[i] / total for i in routes),
                        pieces=len(given[root]),
                        size=float(chunks[given[root][0]].share),
                    )
                )
        counts = shared_out(
            owners,
            packing.loads(demand.network),
            seed=seed,
            check=lambda: self._clock.left <= 0,
        )
        taken = {
            (root, sums): _in_turns(
                [(packing.trees[i], counts[i]) for i in by_root[root, sums]]
            )
            for root, sums in by_root
            if root in given
        }
        works = Works("trees by price, pieces")
        for root, mine in sorted(given.items()):
            for place, chunk in enumerate(mine):
                wave = place / len(mine)
                share = chunks[chunk].share
                there, back = taken.get((root, True)), taken.get((root, False))
                done: tuple[int, ...] = ()
                if there is not None:
                    done = _gathered(works, there[place], chunk, share, wave)
                if back is not None:
                    _spread(works, back[place], chunk, share, wave, done)
        if demand.collective == "all_reduce":
            root_of = {c: root for root, mine in given.items() for c in mine}
            works.owners = tuple(root_of[c.number] for c in chunks)
        return works


def _gathered(
    works: Works, tree: Tree, chunk: int, share: Fraction, wave: float
) -> tuple[int, ...]:
    """Let sums flow to the root; return the last transfers, which end there."""
    come: dict[int, list[int]] = defaultdict(list)
    for u, v, way in reversed(tree.ways):
        move = Move(Fraction(0), chunk, u, v, way, combine=True)
        come[v].append(works.add(move, share, tuple(come[u]), wave))
    return tuple(come[tree.root])


def _spread(
    works: Works,
    tree: Tree,
    chunk: int,
    share: Fraction,
    wave: float,
    done: tuple[int, ...],
) -> None:
    """Let data flow from the root, once what is `done` has come."""
    came = {tree.root: done}
    for u, v, way in tree.ways:
        move = Move(Fraction(0), chunk, u, v, way)
        came[v] = (works.add(move, share, came[u], wave),)


def _given(
    demand: Demand,
    packing: Packing,
    by_root: dict[tuple[int, bool], list[int]],
    chunks: Sequence[Chunk],
) -> dict[int, list[int]]:
    """Return the chunks of every root; of all_reduce as many as its trees carry."""
    found: dict[int, list[int]] = defaultdict(list)
    if demand.collective != "all_reduce":
        for c in chunks:
            found[c.origin].append(c.number)
        return found
    roots = sorted({root for root, _ in by_root})
    shares = [sum(packing.weights[i] for i in by_root[r, False]) for r in roots]
    weights = tuple(s / sum(shares) for s in shares)
    whole = rounded(Owner(routes=tuple(roots), weights=weights, pieces=len(chunks)))
    at = 0
    for r, n in zip(roots, whole, strict=True):
        if n:
            found[r] = list(range(at, at + n))
        at += n
    return found


def _in_turns(many: Sequence[tuple[Tree, int]]) -> list[Tree]:
    """Return the trees so often as they are taken, every kind evenly spread."""
    places = sorted(
        ((j + 0.5) / n, i) for i, (_, n) in enumerate(many) for j in range(n)
    )
    return [many[i][0] for _, i in places]
