"""Whether a kernel written by hand serves a call, and what memory it takes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from stretto.compiler.plan import Handwritten, Plan, PlanLayout, layout
from stretto.executors import Call
from stretto.executors.cuda.codegen.abi import Footprint
from stretto.executors.cuda.codegen.byhand import hand_threads
from stretto.executors.cuda.flags.regions import HALVES
from stretto.executors.cuda.words import ESCAPES, MAX_BLOCKS
from stretto.program.elements import storage


def taken_by_hand(plan: Plan, call: Call, share: int = 1) -> Handwritten | None:
    """Return the kernel that a plan brings, where it takes such a call.

    Every rank answers alike: it depends on nothing but the plan, the call, and the
    share of staging memory that the session has.
    """
    found = plan.by_hand
    if found is None or not call.counts or plan.schedule.protocol == "engine":
        return None
    refused = found.refuses(
        dtype=call.dtype,
        op=call.op.value,
        counts=call.counts,
        itemsize=storage(call.dtype).itemsize,
        memory=plan.schedule.memory,
    )
    blocks = plan.schedule.blocks
    if refused or blocks > MAX_BLOCKS or blocks * hand_threads(plan) > ESCAPES:
        return None
    return found if _fits(hand_footprint(found, plan, call), share) else None


def hand_layout(plan: Plan, sizes: Any, call: Call) -> PlanLayout:
    """Return a layout of one epoch, whose tile is the part: what `count` says."""
    whole = layout(plan, sizes, storage(call.dtype).itemsize, tile_bytes=1 << 62)
    return replace(whole, tile=call.counts[0], tiles=1)


def hand_footprint(found: Handwritten, plan: Plan, call: Call) -> Footprint:
    """Return the scratch and packet memory that a call takes on every rank."""
    nbytes = call.counts[0] * storage(call.dtype).itemsize
    asked = nbytes, plan.num_ranks, plan.schedule.blocks
    return Footprint(
        stage=found.scratch(*asked),
        packets=found.packets(*asked),
    )


def _fits(needs: Footprint, share: int) -> bool:
    stage, packets = HALVES["stage"] // share, HALVES["packets"] // share
    return needs.stage <= stage and needs.packets <= packets
