"""Where atoms start: chunks that are always moved together are one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

from stretto.compiler.lower.values import ValueGraph, laid_over
from stretto.program.collectives import Collective, Shape, SymbolRun


def cut(
    flow: ValueGraph, buffers: list[tuple[SymbolRun, ...]], num_symbols: int
) -> set[int]:
    """Return where atoms start, and the end: every boundary that anything has."""
    cuts = {0, num_symbols}
    for runs in buffers:
        for start, stop, first in runs:
            cuts |= {first, first + stop - start}
    for value in flow.values.values():
        cuts |= {value.lo, value.hi}
    for final in flow.finals:
        cuts |= {final.lo, final.hi}
    return cuts


def cut_alike(cuts: set[int], kind: Collective, shape: Shape) -> set[int]:
    """Add cuts until chunks that lie over each other are cut at the same places."""
    if len(cuts) > kind.num_symbols(shape):
        return cuts  # everywhere
    partners: dict[int, list[int]] = defaultdict(list)
    for rank in range(shape.num_ranks):
        for a, b in laid_over(kind, shape, rank):
            if a != b:
                partners[a].append(b)
                partners[b].append(a)
    todo = list(cuts) if partners else []
    while todo:
        new = [s for s in partners.get(todo.pop(), ()) if s not in cuts]
        cuts.update(new)
        todo += new
    return cuts


def atoms_of(starts: Sequence[int]) -> list[int]:
    """Return the atom of every symbol, and of the end."""
    found: list[int] = []
    for atom, (a, b) in enumerate(pairwise(starts)):
        found += [atom] * (b - a)
    return [*found, len(starts) - 1]
