"""In which order results are added: the tree of additions of each element.

In: what was proved, a program or a plan. Out: how its sums are made, and whether each
is one combination of all inputs in the order of ranks. Never: a number rounded. Such a
combination is rounded once, so an element then has the same bits wherever it lies, in
how many others, and whoever adds it.

In pairs, neighbours are added, then neighbouring sums, each rounded: who holds twice as
many parts and adds them so by himself comes to the same bits on half as many ranks.
"""

from __future__ import annotations

from typing import NamedTuple

from stretto.compiler.plan import Plan, ProvedPlan
from stretto.compiler.verify.contents import members
from stretto.compiler.verify.meaning import Meaning, meaning
from stretto.compiler.verify.plans import left_by
from stretto.compiler.verify.values import Value, Values
from stretto.program import collectives
from stretto.program.ir import Program, Verified


class Orders(NamedTuple):
    """How the elements of all results are added; of what only moves nothing is."""

    trees: tuple[str, ...]
    """Each tree of additions once, spelled for chunk 0, as they are met."""
    rank_order: bool
    """Whether all are one combination of the inputs in rank order, rounded once."""
    pairs: bool
    """Whether all are sums of neighbours, and of neighbouring sums."""


def orders(proved: ProvedPlan | Verified[Program]) -> Orders:
    """Return in which orders a plan adds, as its symbolic run shows; or a program."""
    made: Plan | Program = proved.value
    if not collectives.get(made.collective).reduces:
        return Orders(trees=(), rank_order=True, pairs=True)
    values = Values(made.num_ranks)
    left = meaning(made, values) if isinstance(made, Program) else left_by(made, values)
    met = _met(left)
    return Orders(
        trees=tuple(values.spell((one, 0)) for one in met),
        rank_order=all(_is_flat(values, one) for one in met),
        pairs=all(_is_paired(values, one, made.num_ranks) for one in met),
    )


def _met(left: Meaning) -> list[int]:
    """Return the expressions of all outputs; equal ones are one number."""
    found: dict[int, None] = {}
    for spans in left:
        for _, _, (expression, _) in spans:
            found[expression] = None
    return list(found)


def _is_flat(values: Values, expression: int) -> bool:
    """Return whether it is one combination of inputs, in the order of their ranks."""
    ((_, ranks, _),) = values.contents((expression, 0), 0)
    wanted: list[Value] = [values.input(rank, 0) for rank in members(ranks)]
    return values.combine(wanted) == (expression, 0)


def _is_paired(values: Values, expression: int, num_ranks: int) -> bool:
    """Return whether it is all inputs added as neighbours, and their sums so again."""
    level: list[Value] = [values.input(rank, 0) for rank in range(num_ranks)]
    while len(level) > 1 and len(level) % 2 == 0:
        level = [values.combine(level[i : i + 2]) for i in range(0, len(level), 2)]
    return level == [(expression, 0)]
