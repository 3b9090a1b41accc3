"""Choices made into proved plans: each once a process, of many ranks once a machine.

Every rank does this by itself and gets the same plan: nothing here depends on anything
but its arguments.
"""

from __future__ import annotations

import functools
import json
from dataclasses import replace
from typing import Any, NamedTuple

from stretto import caches
from stretto.compiler.lower import lower
from stretto.compiler.plan import (
    Move,
    Plan,
    ProvedPlan,
    Schedule,
    Space,
    reach,
    settled_hosts,
)
from stretto.compiler.verify import Orders, orders, proved_once, verify, verify_plan
from stretto.errors import LaunchEnvironmentError, PlanError, StrettoError
from stretto.program.ir import Params, Program, Verified
from stretto.program.lang import Algorithm
from stretto.runtime.choice.bits import ANY, PAIRS
from stretto.runtime.choice.kept import KEPT_FROM, are_shipped, kept_at, said_by
from stretto.runtime.choice.question import (
    ZERO_COPY,
    Choice,
    FrozenParams,
    Question,
)


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


class _Wanted(NamedTuple):
    """A plan, by what it is made of."""

    algorithm: Algorithm
    num_ranks: int
    params: FrozenParams
    schedule: Schedule
    in_place: bool
    hosts: tuple[int, ...]

    @property
    def program(self) -> Verified[Program]:
        """Return its program, proved."""
        return proved_program(self.algorithm, self.num_ranks, self.params, self.hosts)


def plan_of(option: Choice, asked: Question) -> ProvedPlan:
    """Return the plan of a choice for a call, proved."""
    return _proved(_wanted(option, asked))


def _wanted(option: Choice, asked: Question) -> _Wanted:
    algorithm, schedule = option
    in_place = _in_place(schedule, asked.in_place)
    return _Wanted(
        algorithm, asked.num_ranks, asked.params, schedule, in_place, asked.hosts
    )


def _in_place(schedule: Schedule, asked: bool) -> bool:
    """Return whether a plan must serve calls in place.

    Every staged plan does; where peers copy across, who calls in place works on a copy.
    """
    return (asked or not schedule.zero_copy) and not schedule.across


def works(option: Choice, asked: Question) -> bool:
    """Return whether there is such a plan for a call: it is lowered and proved."""
    if option.algorithm.refuses(asked.num_ranks):
        return False
    if option.schedule.across and not asked.across:
        return False
    try:
        if asked.bits != ANY and why_bits_vary(option, asked):
            return False
        return not why_not_in_place(option, asked)
    except LaunchEnvironmentError:
        raise  # so there is none of any program
    except StrettoError:
        return False


def why_not_in_place(option: Choice, asked: Question) -> str:
    """Return why a choice does not serve a call in place, as a sentence's end; or "".

    Ranks find the arrays of their peers where their own is. In place that is not so of
    one that is the rank's own part of the other: it lies elsewhere on every rank.
    """
    plan = plan_of(option, asked).value
    if asked.memory != ZERO_COPY or not plan.in_place or plan.kind.rooted:
        return ""
    begins = {plan.kind.in_place(plan.shape, r) for r in range(plan.num_ranks)}
    own, name = (Space.OUTPUT, "out") if None in begins else (Space.INPUT, "x")
    if begins == {0} or all(space is not own for _, space in reach(plan).others):
        return ""
    other = "out" if name == "x" else "x"
    return (
        f"has peers reach {name}, and in place each rank's is another part of {other}"
    )


def why_bits_vary(option: Choice, asked: Question) -> str:
    """Return why a choice does not keep the bits asked for, as a sentence's end; or "".

    Its program tells soon; that its plan adds in the same order, the plan itself does.
    """
    algorithm = option.algorithm
    if algorithm.kernel is not None:
        return "is a kernel by hand: in which order it adds is said, and not proved"
    program = proved_program(algorithm, asked.num_ranks, asked.params, asked.hosts)
    found = _program_orders(program)
    if _keeps(found, asked.bits):
        found = _orders(_wanted(option, asked))
    if _keeps(found, asked.bits):
        return ""
    several = f", in {len(found.trees)} orders" if len(found.trees) > 1 else ""
    return f"adds otherwise ({found.trees[0]}{several})"


def _keeps(found: Orders, bits: str) -> bool:
    return found.pairs if bits == PAIRS else found.rank_order


def proved_plan(
    algorithm: Algorithm,
    num_ranks: int,
    params: FrozenParams,
    schedule: Schedule,
    in_place: bool,
    hosts: tuple[int, ...] = (),
) -> ProvedPlan:
    """Return the plan of an algorithm under a schedule, proved.

    `in_place`: whether it must serve calls in place, as every staged plan does.
    """
    in_place = _in_place(schedule, in_place)
    wanted = _Wanted(algorithm, num_ranks, params, schedule, in_place, hosts)
    return _proved(wanted)


@functools.lru_cache(maxsize=512)
def _proved(wanted: _Wanted) -> ProvedPlan:
    """Prove it, unless a process of this user has done so."""
    _, num_ranks, _, schedule, in_place, hosts = wanted
    if num_ranks < KEPT_FROM:
        return _prove(wanted)
    where = settled_hosts(hosts, num_ranks)

    def is_asked(plan: Plan) -> bool:
        said = plan.num_ranks, plan.schedule, plan.in_place, plan.hosts
        return said == (num_ranks, schedule, in_place, where)

    path = kept_at("proved", *_facts(wanted))
    return proved_once(path, lambda: _prove(wanted), is_asked=is_asked)


def _facts(wanted: _Wanted) -> tuple[str, ...]:
    """Return all that a plan depends on, beside the library."""
    algorithm, num_ranks, params, schedule, in_place, hosts = wanted
    if are_shipped((algorithm,)):
        who = f"{algorithm.name} {params}"
    else:
        who = said_by(wanted.program.value)
    return who, str(num_ranks), str(schedule), str(in_place), repr(hosts)


@functools.lru_cache(maxsize=512)
def _orders(wanted: _Wanted) -> Orders:
    """Return in which orders a plan adds; of many ranks, one process finds out."""
    if wanted.num_ranks < KEPT_FROM:
        return orders(_proved(wanted))
    path = kept_at("orders", *_facts(wanted))
    data = caches.once(path, lambda: json.dumps(orders(_proved(wanted))).encode())
    try:
        trees, rank_order, pairs = json.loads(data)
        return Orders(tuple(map(str, trees)), rank_order is True, pairs is True)
    except (ValueError, TypeError) as e:
        caches.discard(path, f"cannot be read: {type(e).__name__}: {e}")
        return orders(_proved(wanted))


@functools.lru_cache(maxsize=256)
def _program_orders(program: Verified[Program]) -> Orders:
    return orders(program)


def _prove(wanted: _Wanted) -> ProvedPlan:
    """Lower and prove it.

    A staged plan that allows calls in place serves the others too (ranks may differ in
    it), so it is proved for both.
    """
    program, schedule = wanted.program, wanted.schedule
    plan = lower(program, schedule, in_place=wanted.in_place, hosts=wanted.hosts)
    if schedule.zero_copy:
        _see_peers(plan)
    elif wanted.in_place:
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
