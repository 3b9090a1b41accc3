"""Who sends what to whom, when several memories hold a tensor on each side.

What several sources hold (few KV heads, a compressed cache) is read from one of them,
and destinations that want it read from different ones.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stretto.errors import LayoutError
from stretto.transfer.layouts import Layout
from stretto.transfer.plans.plan import Plan, plan

_Region = tuple[tuple[str, int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Deal:
    """The plans between all sources and all destinations."""

    srcs: tuple[Layout, ...]
    dsts: tuple[Layout, ...]
    plans: Mapping[tuple[int, int], tuple[Plan, ...]]
    """By the numbers of a source and a destination; pairs without a plan are apart."""

    def writers(self, dst: int) -> tuple[int, ...]:
        """Return the sources that a destination hears of, for counting them."""
        return tuple(s for s, d in sorted(self.plans) if d == dst)


def deal(srcs: Sequence[Layout], dsts: Sequence[Layout]) -> Deal:
    """Return plans by which every destination gets all that it holds, once."""
    if not srcs or not dsts:
        raise LayoutError(f"{len(srcs)} sources and {len(dsts)} destinations")
    plans: dict[tuple[int, int], list[Plan]] = {}
    for d, dst in enumerate(dsts):
        for region in _regions(srcs, dst):
            holders = [s for s, src in enumerate(srcs) if _holds(src, region)]
            if not holders:
                lacking = " ".join(f"{n}={a}:{b}" for n, a, b in region)
                raise LayoutError(
                    f"nobody holds {lacking} for {dst}: the sources are "
                    + "; ".join(map(str, srcs))
                )
            s = holders[d * len(holders) // len(dsts)]
            plans.setdefault((s, d), []).append(plan(srcs[s], dst, only=region))
    fixed = {pair: tuple(some) for pair, some in plans.items()}
    return Deal(srcs=tuple(srcs), dsts=tuple(dsts), plans=fixed)


def _regions(srcs: Sequence[Layout], dst: Layout) -> list[_Region]:
    """Return parts of a destination, each of which a source holds wholly or not at all.

    They are cut where any source begins or ends.
    """
    axes: list[list[tuple[str, int, int]]] = []
    for name in _divided(srcs, dst):
        axis = dst.axis(name)
        ends = {axis.start, axis.stop}
        for src in srcs:
            theirs = src.axis(name)
            if theirs.total != axis.total:
                raise LayoutError(f"from {src}\n  to {dst}:\n  {name} differs in size")
            ends |= {theirs.start, theirs.stop}
        cuts = sorted(e for e in ends if axis.start <= e <= axis.stop)
        axes.append([(name, a, b) for a, b in itertools.pairwise(cuts)])
    return list(itertools.product(*axes))


def _divided(srcs: Sequence[Layout], dst: Layout) -> list[str]:
    """Return the axes that somebody holds only a part of."""

    def is_part(layout: Layout, name: str) -> bool:
        axis = layout.axis(name)
        return axis.size < axis.total

    return [n for n in dst.names if any(is_part(one, n) for one in (*srcs, dst))]


def _holds(src: Layout, region: _Region) -> bool:
    return all(src.axis(n).start <= a and b <= src.axis(n).stop for n, a, b in region)
