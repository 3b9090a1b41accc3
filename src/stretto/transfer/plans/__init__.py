"""What goes where: strided boxes between two layouts, computed once, and proved."""

from stretto.transfer.plans.deal import Deal, deal
from stretto.transfer.plans.plan import Box, Plan, Run, plan
from stretto.transfer.plans.proof import prove, prove_deal, prove_tiles
from stretto.transfer.plans.proving import proved, split

__all__ = [
    "Box", "Deal", "Plan", "Run", "deal", "plan", "prove", "prove_deal", "prove_tiles",
    "proved", "split",
]  # fmt: skip
