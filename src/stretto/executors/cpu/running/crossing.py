"""What of a plan the kernel copies between processes: moves that touch others' arrays.

A reader fetches from its peer's array, or an owner gives into it: one copy each, of one
source. So a message may be halved: its owner gives one part while its reader fetches
the other, and both cores copy.
"""

from __future__ import annotations

from stretto.compiler.plan import Loc, Move, Plan, Space

__all__ = ["crosses", "parted", "why_not_across"]


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
