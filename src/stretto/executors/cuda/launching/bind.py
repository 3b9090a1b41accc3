"""A plan's kernel, loaded and with all of its parameters but addresses.

In: a proved plan, a kind of call, the name of a launch. Out: a part of that launch.
Never: what a call is beside its collective, which prepare.py decides.
"""

from __future__ import annotations

from typing import Any

from stretto.executors import Call
from stretto.executors.cuda.launching.launch import BoundKernel
from stretto.executors.cuda.launching.names import CallName
from stretto.executors.cuda.launching.plain import places_in
from stretto.executors.cuda.launching.services import SessionServices
from stretto.ir import Verified
from stretto.lower import Batched, as_one_kernel
from stretto.plan import Layout, Plan

__all__ = ["bind_kernel", "bind_plan", "places_of"]


def bind_plan(
    session: SessionServices,
    plan: Verified[Plan],
    call: Call,
    name: CallName,
    **more: Any,
) -> BoundKernel:
    """Bind a plan to a kernel of its own."""
    places = places_of(session, plan.value, call)
    run = as_one_kernel(plan, several_tiles=places.tiles > 1)
    return bind_kernel(session, run, call, places, name, **more)


def bind_kernel(
    session: SessionServices,
    plan: Batched,
    call: Call,
    places: Layout,
    name: CallName,
    *,
    share: int = 0,
    counted: bool = False,
    **more: Any,
) -> BoundKernel:
    """Bind a plan's kernel to what is packed with it."""
    loaded = session.load_call(plan, call, share=share, counted=counted)
    return BoundKernel(session, plan.plan, loaded, where=places, name=name, **more)


def places_of(session: SessionServices, plan: Plan, call: Call) -> Layout:
    """Return how a call is laid out in a session's staging."""
    return places_in(session.regions[0], plan, call)
