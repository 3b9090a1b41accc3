"""Choices made into proved plans: each once a process, of many ranks once a machine.

Every rank does this by itself and gets the same plan: nothing here depends on anything
but its arguments.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any, TypeAlias

from stretto.choice.kept import KEPT_FROM, are_shipped, kept_at, said_by
from stretto.errors import PlanError, StrettoError
from stretto.ir import Params, Program, Verified
from stretto.lang import Algorithm
from stretto.lower import lower
from stretto.plan import Move, Plan, Schedule, Space, settled_hosts
from stretto.verify import proved_once, verify, verify_plan

__all__ = [
    "FrozenParams",
    "frozen",
    "proved_plan",
    "proved_program",
    "serves",
]

FrozenParams: TypeAlias = tuple[tuple[str, object], ...]
"""Parameters as something that can be hashed."""


def frozen(params: Params) -> FrozenParams:
    """Return parameters in name order, hashable."""
    return tuple(sorted(params.items()))


@functools.lru_cache(maxsize=256)
def proved_program(
    algorithm: Algorithm,
    num_ranks: int,
    params: FrozenParams,
    hosts: tuple[int, ...] = (),
) -> Verified[Program]:
    """Return an algorithm's program for that many ranks, proved.

    One that is written for several hosts is told who is where.
    """
    options: dict[str, Any] = dict(params)
    if hosts and algorithm.knows_hosts:
        options["hosts"] = hosts
    return verify(algorithm.build(num_ranks, **options))


def proved_plan(
    algorithm: Algorithm,
    num_ranks: int,
    params: FrozenParams,
    schedule: Schedule,
    in_place: bool,
    hosts: tuple[int, ...] = (),
) -> Verified[Plan]:
    """Return the plan of an algorithm under a schedule, proved.

    `in_place`: whether it must serve calls in place, as every staged plan does.
    """
    in_place = in_place or not schedule.zero_copy
    return _proved(algorithm, num_ranks, params, schedule, in_place, hosts)


@functools.lru_cache(maxsize=512)
def _proved(
    algorithm: Algorithm,
    num_ranks: int,
    params: FrozenParams,
    schedule: Schedule,
    in_place: bool,
    hosts: tuple[int, ...] = (),
) -> Verified[Plan]:
    """Prove it, unless a process of this user has done so."""

    def prove() -> Verified[Plan]:
        return _prove(algorithm, num_ranks, params, schedule, in_place, hosts)

    if num_ranks < KEPT_FROM:
        return prove()
    if are_shipped((algorithm,)):
        who = f"{algorithm.name} {params}"
    else:
        who = said_by(proved_program(algorithm, num_ranks, params, hosts).value)
    where = settled_hosts(hosts, num_ranks)

    def is_asked(plan: Plan) -> bool:
        said = plan.num_ranks, plan.schedule, plan.in_place, plan.hosts
        return said == (num_ranks, schedule, in_place, where)

    facts = who, str(num_ranks), str(schedule), str(in_place), repr(hosts)
    return proved_once(kept_at("proved", *facts), prove, is_asked=is_asked)


def _prove(
    algorithm: Algorithm,
    num_ranks: int,
    params: FrozenParams,
    schedule: Schedule,
    in_place: bool,
    hosts: tuple[int, ...],
) -> Verified[Plan]:
    """Lower and prove it.

    A staged plan that allows calls in place serves the others too (ranks may differ in
    it), so it is proved for both.
    """
    program = proved_program(algorithm, num_ranks, params, hosts)
    plan = lower(program, schedule, in_place=in_place, hosts=hosts)
    if schedule.zero_copy:
        _see_peers(plan)
    elif in_place:
        verify_plan(replace(plan, in_place=False), program)
    return verify_plan(plan, program)


def _see_peers(plan: Plan) -> None:
    """Refuse a plan in which a rank cannot tell where a peer's array lies.

    Registered arrays lie at the same place on every rank, so a rank's own tells; but
    the leaf of a gather has no output.
    """
    sides = {Space.INPUT: plan.inputs, Space.OUTPUT: plan.outputs}
    for rank, _, _, step in plan.steps():
        if not isinstance(step, Move):
            continue
        for loc in (*step.dsts, *step.srcs):
            if loc.rank != rank and loc.space in sides and not sides[loc.space][rank]:
                name = loc.space.name.lower()
                raise PlanError(
                    f"{plan.name} under {plan.schedule}: rank {rank} reaches into the "
                    f"{name} of rank {loc.rank} and has no {name} of its own to tell "
                    f"where that lies; want another direction, or staged memory"
                )


def serves(
    algorithm: Algorithm,
    num_ranks: int,
    params: FrozenParams,
    schedule: Schedule,
    in_place: bool,
    hosts: tuple[int, ...] = (),
) -> bool:
    """Return whether there is such a plan."""
    if algorithm.refuses(num_ranks):
        return False
    try:
        proved_plan(algorithm, num_ranks, params, schedule, in_place, hosts)
    except StrettoError:
        return False
    return True
