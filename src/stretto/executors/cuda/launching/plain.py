"""Which kernels a plain call runs: known without a session, and so ahead of the call.

In: a proved plan, a kind of call without epilogue or pitch, a share of staging. Out:
what its kernels are made of. Never: a GPU, or another rank.
"""

from __future__ import annotations

from collections.abc import Iterator

from stretto.compiler.plan import Plan, PlanLayout, ProvedPlan, hands_round_on_engine
from stretto.executors import Call
from stretto.executors.cuda.codegen.abi import Kernel
from stretto.executors.cuda.codegen.byhand import hand_kernel
from stretto.executors.cuda.codegen.generate import generate
from stretto.executors.cuda.flags.regions import FlagRegion, fit, symbol_sizes
from stretto.executors.cuda.launching.byhand import taken_by_hand
from stretto.executors.cuda.launching.copies import runs_on_engine
from stretto.program.elements import storage

BARRIER = Call(dtype="uint8")
"""What the kernel of a barrier beside copies is generated for."""


def places_in(region: FlagRegion, plan: Plan, call: Call) -> PlanLayout:
    """Return how a call is laid out in a region's staging."""
    sizes, itemsize = symbol_sizes(plan, call), storage(call.dtype).itemsize
    return fit(plan, sizes, itemsize, region=region)


def plain_kernels(
    plan: ProvedPlan, call: Call, *, rank: int, region: FlagRegion
) -> Iterator[Kernel]:
    """Yield the kernels that a session of such regions loads for a plain call."""
    value = plan.value
    own = taken_by_hand(value, call, region.share)
    if own is not None:
        yield hand_kernel(own, value, rank=rank, dtype=call.dtype, op=call.op)
        return
    if runs_on_engine(value):
        copies, runs = plan.copied(), None
    else:
        places = places_in(region, value, call)
        several_tiles = places.tiles > 1
        copies, runs = None, plan.as_one_kernel(several_tiles=several_tiles)
        if hands_round_on_engine(value):
            halves = plan.in_halves(several_tiles=several_tiles)
            copies, runs = halves.copies, halves.kernel
    if runs is not None:
        yield generate(runs, rank=rank, dtype=call.dtype, op=call.op)
    if copies is not None:
        yield generate(plan.barrier(), rank=rank, dtype=BARRIER.dtype, op=BARRIER.op)
