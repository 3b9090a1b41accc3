"""What of a plan the kernel copies between processes: moves that touch others' arrays.

A reader fetches from its peer's array, or an owner gives into it: one copy each, of one
source. So a message may be halved: its owner gives one part while its reader fetches
the other, and both cores copy.
"""

from __future__ import annotations

from stretto.compiler.plan import Loc, Move, Plan, Space

__all__ = ["crosses", "keeps_own", "parted", "why_not_across"]


def crosses(rank: int, loc: Loc) -> bool:
    """Return whether a place that a rank touches is in another rank's array."""
    return loc.rank != rank and loc.space is not Space.STAGE


def parted(rank: int, step: Move) -> tuple[Move | None, list[Move]]:
    """Return what of a move is in memory that is mapped here, and each copy across."""
    if any(crosses(rank, src) for src in step.srcs):
        return None, [step]
    here = tuple(dst for dst in step.dsts if not crosses(rank, dst))
    away = [step._replace(dsts=(dst,)) for dst in step.dsts if dst not in here]
    return step._replace(dsts=here) if here else None, away


def why_not_across(plan: Plan) -> str:
    """Return why the kernel cannot copy what a plan has go across, or ""."""
    for rank, _, _, step in plan.steps():
        if not isinstance(step, Move):
            continue
        read = any(crosses(rank, src) for src in step.srcs)
        given = any(crosses(rank, dst) for dst in step.dsts)
        alone = len(step.srcs) == 1 and not step.finish
        if (read and (given or len(step.dsts) > 1)) or ((read or given) and not alone):
            return (
                f"rank {rank} does more than copy once to or from others: across is "
                "for what is copied; want staged"
            )
    return ""


def keeps_own(plan: Plan, rank: int) -> bool:
    """Return whether an output's place for this rank's own gets nothing but its own.

    Then the input may lie there while peers read it: what is written is there already.
    """
    moves = [(q, s) for q, _, _, s in plan.steps() if isinstance(s, Move)]
    mine, own = (rank, Space.INPUT), (rank, Space.OUTPUT)
    read = {
        src.pos + i
        for _, move in moves
        for src in move.srcs
        if (src.rank, src.space) == mine
        for i in range(move.stop - move.start)
    }
    written = {
        (dst.pos, move.stop - move.start, q, move.srcs)
        for q, move in moves
        for dst in move.dsts
        if (dst.rank, dst.space) == own
    }
    kept: set[int] = set()
    others: list[int] = []
    for pos, many, q, srcs in written:
        if q == rank and len(srcs) == 1 and (srcs[0].rank, srcs[0].space) == mine:
            kept.add(pos - srcs[0].pos)
        else:
            others += range(pos, pos + many)
    return len(kept) == 1 and not any(pos - min(kept) in read for pos in others)
