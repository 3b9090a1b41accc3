"""Pieces down trees: what every piece of a packing of trees has to do."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from typing import TypeAlias

from stretto.synth.bounds.bound import Bounds
from stretto.synth.clock import OutOfTimeError, SearchClock
from stretto.synth.general.equal_trees import equal_trees
from stretto.synth.general.hop_times import Top, Tree
from stretto.synth.general.meetings import meetings
from stretto.synth.general.partners import Lane, partners
from stretto.synth.general.rounding import RouteOwner, rounded, shared_out
from stretto.synth.general.transfers import TimedTransfers
from stretto.synth.general.tree_packing import FILLED, VARIED, Packing, Pool
from stretto.synth.network.symmetry import Symmetry
from stretto.synth.schedules.schedule import DataChunk, Demand, TimedMove

__all__ = ["LATENCY_COUNTS", "TreeSource"]

_FEW_RANKS, _TURNS = 40, 24
"""Of so many all trees are filled in at first; prices for each time it gets better."""
_ANY, _FEW_PARTNERS, _AT_ONCE, _EQUAL = 0, (1, 2, 3), -1, -2
"""Kinds of trees: ports have any partners over switches, or so many; those whose sums
and copies use links at the same time, where else each has its own; and, from there on
down, those of equal weight."""
_AS_GOOD = 1.01
_TO_VARY = 0.2
"""Of a budget, what trees may take before the first plan."""
LATENCY_COUNTS = 50
"""Times the latency: where all takes longer, only rates count."""
_LATER = Fraction(0)
"""When a move starts is planned later."""


class TreeSource:
    """The trees of a demand whose data spread, or whose sums flow, or both."""

    def __init__(
        self, demand: Demand, symmetry: Symmetry, limit: Bounds, clock: SearchClock
    ) -> None:
        """Begin with the trees that one plan needs, and more if there is time."""
        self._demand, self._symmetry, self._clock = demand, symmetry, clock
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
        self._parts = parts
        late = limit.us(demand.nbytes) < LATENCY_COUNTS * limit.us(1)
        self._meetings = meetings(network) if late and not parts else []
        self._goal = 1 / float(limit.algbw)
        self._switched = network.num_nodes > network.num_ranks
        self._equal: list[Packing] | None = None
        self._chosen: dict[int, int] = {}
        """How many trees were known when partners were chosen."""
        self._packings: dict[tuple[int, int], Packing] = {}
        known = self._pool(None)
        self._pools, self._open = {_ANY: known}, {_ANY: True}
        """The trees by kind, and whether there may be better ones."""
        if known.timed:
            self._goal = float(limit.us(demand.nbytes)) * 1000 / demand.nbytes
        few = network.num_ranks <= _FEW_RANKS
        # one plan there will be
        known.fill(FILLED if few else 2, SearchClock(None))
        with suppress(OutOfTimeError):  # the rest comes later
            if few and known.timed:
                known.fill(VARIED, clock.part(_TO_VARY))
        self._kinds: tuple[int, ...] = (
            _ANY,
            *(_FEW_PARTNERS if self._switched else ()),
            *((_AT_ONCE,) if known.has_phases else ()),
        )

    def _pool(self, lanes: tuple[Lane, ...] | None, *, apart: bool = True) -> Pool:
        demand = self._demand
        return Pool(
            demand.network,
            self._parts,
            spread=not demand.combines or demand.collective == "all_reduce",
            sums=demand.combines,
            nbytes=demand.nbytes,
            lanes=lanes,
            apart=apart,
            meetings=self._meetings,
        )

    @property
    def open(self) -> bool:
        """Return whether there may be better trees."""
        return any(self._open.values())

    def improve(self) -> bool:
        """Look for better trees; return whether there are any."""
        if not self.open:
            return False
        if self._open[_ANY]:
            self._grow(_ANY)
            self._forget()
        for kind in sorted(self._open):
            if kind != _ANY and self._open[kind]:
                self._grow(kind)
        self._packings.clear()
        return True

    def _forget(self) -> None:
        """Forget partners that cost much, where more is known than when they met."""
        known = self._pools[_ANY]
        for many, trees in list(self._chosen.items()):
            dear = self._pools[many].fullest > known.fullest * _AS_GOOD
            if dear and len(known.trees) > trees:
                del self._pools[many], self._open[many], self._chosen[many]

    def _grow(self, kind: int) -> None:
        self._open[kind] = self._pools[kind].grow(self._clock, self._goal, _TURNS)

    @property
    def variants(self) -> int:
        """Return how many kinds of trees there are."""
        return len(self._kinds)

    @property
    def first_better(self) -> bool:
        """Return whether trees come before kinds: there are no partners to choose."""
        return not self._switched

    def _packing(self, split: int, variant: int) -> Packing:
        """Return the trees for so many pieces: the fewer, the shallower."""
        scale = min(s for s in (4, 16, 64, 1 << 30) if split <= s)
        kind = self._kinds[variant]
        if kind <= _EQUAL:
            assert self._equal is not None  # the kind is there since they are
            return self._equal[_EQUAL - kind]
        if (scale, kind) not in self._packings:
            if kind not in self._pools:
                self._begin(kind)
            packing = self._pools[kind].packing(min(scale, 256))
            self._packings[scale, kind] = packing
        return self._packings[scale, kind]

    def _begin(self, kind: int) -> None:
        """Look for trees of a kind that is new."""
        if kind == _AT_ONCE:
            self._pools[kind] = self._pool(None, apart=False)
            self._grow(kind)
        else:
            self._meet(kind)

    def _meet(self, many: int) -> None:
        """Let ports have so many partners; look for trees that need no others."""
        known = self._pools[_ANY]
        flows = known.packing(256).flows
        self._chosen[many] = len(known.trees)
        met = self._pool(partners(self._demand.network, flows, many))
        met.fill(1, self._clock)
        self._pools[many] = met if met.is_complete else known
        self._grow(many)

    def choose(self) -> int:
        """Return the kind with the fewest partners that costs little."""
        if _AT_ONCE in self._kinds and _AT_ONCE not in self._pools:
            self._begin(_AT_ONCE)
        self._equals()
        if not self._switched:
            return 0
        if 1 not in self._pools:
            self._meet(1)
        if self._pools[1].fullest <= self._goal * _AS_GOOD:
            return 1
        if self._pools[_ANY].fullest == math.inf:
            self.improve()  # what flows best says better who is to meet
        for many in _FEW_PARTNERS:
            if many not in self._pools:
                self._meet(many)
            known = max(self._goal, self._pools[_ANY].fullest)
            if self._pools[many].fullest <= known * _AS_GOOD:
                return self._kinds.index(many)
        return self._kinds.index(
            min((_ANY, *_FEW_PARTNERS), key=lambda kind: self._pools[kind].fullest)
        )

    def _equals(self) -> None:
        """Look for trees of equal weight, each packing a kind of its own."""
        demand, network = self._demand, self._demand.network
        few = len(network.members) == network.num_ranks <= _FEW_RANKS
        if self._equal is not None or not few or demand.weights:
            return
        self._equal = []
        if not self._pools[_ANY].timed:
            with suppress(OutOfTimeError):
                check = self._clock.part(_TO_VARY).check
                self._equal = equal_trees(demand, self._symmetry, self._goal, check)
        self._kinds += tuple(_EQUAL - i for i in range(len(self._equal)))

    def promise(self, variant: int) -> float:
        """Return by what factor the trees that are known miss the bound."""
        kind = self._kinds[variant]
        if kind <= _EQUAL and self._equal is not None:
            return self._equal[_EQUAL - kind].fullest / self._goal
        pool = self._pools.get(kind)
        return math.inf if pool is None else pool.fullest / self._goal

    def prepare(self, split: int, variant: int) -> None:
        """Find the trees for such a cut, if they are not known yet."""
        self._packing(split, variant)

    def transfers(self, split: int, seed: int, variant: int = 0) -> TimedTransfers:
        """Return all transfers of a cut into so many pieces a part."""
        packing = self._packing(split, variant)
        demand = replace(self._demand, split=split)
        chunks = list(demand.chunks())
        by_root: dict[tuple[Top, bool], list[int]] = defaultdict(list)
        for i, tree in enumerate(packing.trees):
            by_root[tree.top, tree.sums].append(i)
        given = _given(demand, packing, by_root, chunks)
        owners = []
        for (root, _), routes in sorted(by_root.items()):
            if root in given:
                total = sum(packing.weights[i] for i in routes)
                owners.append(
                    RouteOwner(
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
        transfers = TimedTransfers("trees by price, pieces")
        for root, mine in sorted(given.items()):
            for place, chunk in enumerate(mine):
                piece = chunk, chunks[chunk].share, place / len(mine)
                there, back = taken.get((root, True)), taken.get((root, False))
                come: Come = {}
                if there is not None:
                    come = _gathered(transfers, there[place], piece)
                    if len(root) > 1:
                        assert back is not None  # sums that meet are told
                        come = _met(transfers, there[place], back[place], piece, come)
                if back is not None:
                    _spread(transfers, back[place], piece, come)
        if demand.collective == "all_reduce":
            root_of = {c: top[0] for top, mine in given.items() for c in mine}
            transfers.owners = tuple(root_of[c.number] for c in chunks)
        return transfers


Come: TypeAlias = dict[int, tuple[int, ...]]
"""By rank, the transfers that bring it what it then sends on."""
_Piece: TypeAlias = tuple[int, Fraction, float]
"""A chunk, its share and its wave."""


def _gathered(transfers: TimedTransfers, tree: Tree, piece: _Piece) -> Come:
    """Let sums flow to the root, and to whom it meets."""
    chunk, share, wave = piece
    come: dict[int, list[int]] = defaultdict(list)
    for u, v, way in reversed(tree.ways):
        if not {u, v} <= {*tree.top}:
            move = TimedMove(_LATER, chunk, u, v, way, combine=True)
            come[v].append(transfers.add(move, share, tuple(come[u]), wave))
    return {v: tuple(come[v]) for v in tree.top}


def _met(
    transfers: TimedTransfers, there: Tree, back: Tree, piece: _Piece, come: Come
) -> Come:
    """Let some ranks tell each other what they added up; then they have all."""
    chunk, share, wave = piece
    met = dict(come)
    for u, v, way in (*there.ways, *back.ways):
        if {u, v} <= {*there.top}:
            move = TimedMove(_LATER, chunk, u, v, way, combine=True)
            met[v] = (*met[v], transfers.add(move, share, come[u], wave))
    return met


def _spread(transfers: TimedTransfers, tree: Tree, piece: _Piece, come: Come) -> None:
    """Let data flow from the root, or from all who met, once they have it."""
    chunk, share, wave = piece
    came = {tree.top[0]: (), **come}
    for u, v, way in tree.ways:
        if not {u, v} <= {*tree.top}:
            move = TimedMove(_LATER, chunk, u, v, way)
            came[v] = (transfers.add(move, share, came[u], wave),)


def _given(
    demand: Demand,
    packing: Packing,
    by_root: dict[tuple[Top, bool], list[int]],
    chunks: Sequence[DataChunk],
) -> dict[Top, list[int]]:
    """Return the chunks of every root; of all_reduce as many as its trees carry."""
    found: dict[Top, list[int]] = defaultdict(list)
    if demand.collective != "all_reduce":
        for c in chunks:
            found[c.origin,].append(c.number)
        return found
    roots = sorted({root for root, _ in by_root})
    shares = [sum(packing.weights[i] for i in by_root[r, False]) for r in roots]
    weights = tuple(s / sum(shares) for s in shares)
    whole = rounded(
        RouteOwner(routes=tuple(range(len(roots))), weights=weights, pieces=len(chunks))
    )
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
