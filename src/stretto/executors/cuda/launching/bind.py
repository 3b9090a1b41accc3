"""A plan's kernel, loaded and with all of its parameters but addresses.

In: a proved plan, a kind of call, the name of a launch. Out: a part of that launch.
Never: what a call is beside its collective, which prepare.py decides.
"""

from __future__ import annotations

from typing import Any

from stretto.compiler.plan import Batched, PlanLayout, ProvedPlan, Space
from stretto.executors import Call
from stretto.executors.cuda.launching.launch import BoundKernel
from stretto.executors.cuda.launching.names import CallName
from stretto.executors.cuda.launching.peers import peer_spaces
from stretto.executors.cuda.launching.plain import places_in
from stretto.executors.cuda.launching.services import SessionServices


def bind_plan(
    session: SessionServices,
    plan: ProvedPlan,
    call: Call,
    name: CallName,
    **more: Any,
) -> BoundKernel:
    """Bind a plan to a kernel of its own."""
    places = places_in(session.regions[0], plan.value, call)
    run = plan.as_one_kernel(several_tiles=places.tiles > 1)
    loaded = session.load_call(run, call)
    more["shares"] = peer_spaces(run.plan, session.group.rank)
    return BoundKernel(session, run.plan, loaded, where=places, name=name, **more)


def bind_kernel(
    session: SessionServices,
    run: Batched,
    call: Call,
    places: PlanLayout,
    name: CallName,
    *,
    share: int = 0,
    counted: bool = False,
    shares: frozenset[Space] | None = None,
    **more: Any,
) -> BoundKernel:
    """Bind a kernel to what is packed with it.

    `shares` are the spaces that peers touch: the plan's, unless others are said.
    """
    loaded = session.load_call(run, call, share=share, counted=counted)
    more["shares"] = shares
    if shares is None:
        more["shares"] = peer_spaces(run.plan, session.group.rank)
    return BoundKernel(session, run.plan, loaded, where=places, name=name, **more)
