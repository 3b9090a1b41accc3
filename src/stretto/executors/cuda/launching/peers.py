"""Which of everybody's own arrays a plan lets peers touch."""

from __future__ import annotations

from stretto.compiler.plan import Move, Plan, Space


def peer_spaces(plan: Plan, rank: int) -> frozenset[Space]:
    """Return which of everybody's own arrays a plan lets peers touch.

    Asked of the whole plan, so that every rank mixes the same offsets.
    """
    assert 0 <= rank < plan.num_ranks, "sessions prepare plans of their own size"
    return frozenset(
        loc.space
        for owner, _, _, step in plan.steps()
        if isinstance(step, Move)
        for loc in (*step.dsts, *step.srcs)
        if loc.rank != owner and loc.space is not Space.STAGE
    )
