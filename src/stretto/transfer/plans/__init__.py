"""What goes where: strided boxes between two layouts, computed once, and proved."""

from stretto.transfer.plans.deal import Deal, deal
from stretto.transfer.plans.plan import Box, BoxRun, Plan, plan
from stretto.transfer.plans.proof import prove, prove_deal, prove_tiles
from stretto.transfer.plans.proving import planned, proved, split

__all__ = [
    "Box",
    "BoxRun",
    "Deal",
    "Plan",
    "deal",
    "plan",
    "planned",
    "prove",
    "prove_deal",
    "prove_tiles",
    "proved",
    "split",
]  # fmt: skip
