"""Plans with one thing wrong: in their steps, operands, atoms, lanes, signals, layout.

A mutant is made when it is asked for: `plan_edits` only names them, so that a few can
be drawn from many. Some compute the same all the same (a copy done twice); whoever
accepts one must be right about it, which the referee judges.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TypeAlias

from stretto.compiler.plan import BufferRun, Loc, Move, Plan, Signal, Space, Step, Wait

__all__ = ["plan_edits", "plan_mutants"]

Edit: TypeAlias = tuple[str, Callable[[], Plan]]
"""What is done, and the plan with it."""


def plan_mutants(plan: Plan) -> Iterator[tuple[str, Plan]]:
    """Yield what was done and the plan with it."""
    for what, make in plan_edits(plan):
        yield what, make()


def plan_edits(plan: Plan) -> Iterator[Edit]:
    """Yield every mutant of a plan, not made yet."""
    for rank, lane, i, step in plan.steps():
        at = f"r{rank}.{lane} step {i}"
        for what, steps in _step_edits(plan, rank, step):
            yield f"{what} at {at}", partial(_put, plan, rank, lane, i, steps)
        if isinstance(step, Signal):
            gone = partial(_unsignalled, plan, rank, lane, i, step)
            yield f"no signal at {at}", gone
        yield from _order_edits(plan, rank, lane, i, at)
    yield from _lane_edits(plan)
    yield from _layout_edits(plan)


# One step becomes another one, or two, or none.


def _step_edits(
    plan: Plan, rank: int, step: Step
) -> Iterator[tuple[str, tuple[Step, ...]]]:
    yield "drop", ()
    if isinstance(step, Move):
        yield "double", (step, step)
        for what, other in _moved(plan, rank, step):
            yield what, (other,)
        if step.stop - step.start > 1:
            first = step._replace(stop=step.start + 1)
            rest = _shifted(step, 1)._replace(start=step.start + 1, stop=step.stop)
            yield "cut in two", (first, rest)
            yield "cut in two, backwards", (rest, first)
        return
    n = plan.num_ranks
    yield "other peer", (step._replace(rank=(step.rank + 1) % n),)
    yield "other lane", (step._replace(lane=step.lane + 1),)
    yield "one later", (step._replace(n=step.n + 1),)
    if step.n > 1:
        yield "one earlier", (step._replace(n=step.n - 1),)
    if isinstance(step, Signal):
        yield "other strength", (step._replace(release=not step.release),)


def _moved(plan: Plan, rank: int, move: Move) -> Iterator[tuple[str, Move]]:
    for j, dst in enumerate(move.dsts):
        rest = move.dsts[:j] + move.dsts[j + 1 :]
        if rest:
            yield f"no destination {j}", move._replace(dsts=rest)
        for what, other in _elsewhere(plan, dst):
            changed = (*move.dsts[:j], other, *move.dsts[j + 1 :])
            yield f"{what} of destination {j}", move._replace(dsts=changed)
    for j, src in enumerate(move.srcs):
        rest = move.srcs[:j] + move.srcs[j + 1 :]
        if rest:
            yield f"no source {j}", move._replace(srcs=rest)
            yield f"source {j} last", move._replace(srcs=(*rest, src))
        for what, other in _elsewhere(plan, src):
            changed = (*move.srcs[:j], other, *move.srcs[j + 1 :])
            yield f"{what} of source {j}", move._replace(srcs=changed)
    if len(move.srcs) > 1:
        yield "added backwards", move._replace(srcs=move.srcs[::-1])
    yield "a source more", move._replace(srcs=(*move.srcs, move.srcs[0]))
    yield "other finish", move._replace(finish=not move.finish)
    yield "next atoms", move._replace(start=move.start + 1, stop=move.stop + 1)
    yield "an atom more", move._replace(stop=move.stop + 1)
    yield "everything one on", _shifted(move, 1)
    if move.start:
        yield "atoms before", move._replace(start=move.start - 1, stop=move.stop - 1)
        yield "an atom more, before", move._replace(start=move.start - 1)
    if move.stop - move.start > 1:
        yield "an atom less", move._replace(stop=move.stop - 1)
        yield "an atom less, at first", move._replace(start=move.start + 1)
    own = Loc(rank, Space.OUTPUT, 0)
    yield "stored in the output too", move._replace(dsts=(*move.dsts, own))


def _shifted(move: Move, by: int) -> Move:
    """Return a move with all its operands so many positions further."""

    def on(locs: tuple[Loc, ...]) -> tuple[Loc, ...]:
        return tuple(loc._replace(pos=loc.pos + by) for loc in locs)

    return move._replace(dsts=on(move.dsts), srcs=on(move.srcs))


def _elsewhere(plan: Plan, loc: Loc) -> Iterator[tuple[str, Loc]]:
    yield "other rank", loc._replace(rank=(loc.rank + 1) % plan.num_ranks)
    yield "place after", loc._replace(pos=loc.pos + 1)
    if loc.pos:
        yield "place before", loc._replace(pos=loc.pos - 1)
    for space in Space:
        if space is not loc.space:
            other = loc._replace(space=space, packets=False)
            yield f"{space.name.lower()} in place", other
    if loc.space is Space.STAGE:
        yield "other announcement", loc._replace(packets=not loc.packets)


# Steps in another order, or in another lane.


def _order_edits(plan: Plan, rank: int, lane: int, i: int, at: str) -> Iterator[Edit]:
    steps = plan.ranks[rank][lane]
    for by in (1, 2, 3, len(steps)):
        to = min(len(steps) - 1, i + by)
        if to - i == by or (by == len(steps) and to - i > 3):
            yield f"{by} later {at}", partial(_carried, plan, rank, lane, i, to)
        to = max(0, i - by)
        if (i - to == by > 1) or (by == len(steps) and i - to > 3):
            yield f"{by} sooner {at}", partial(_carried, plan, rank, lane, i, to)


def _carried(plan: Plan, rank: int, lane: int, i: int, to: int) -> Plan:
    steps = list(plan.ranks[rank][lane])
    steps.insert(to, steps.pop(i))
    return _with(plan, rank, lane, tuple(steps))


def _lane_edits(plan: Plan) -> Iterator[Edit]:
    for rank, lanes in enumerate(plan.ranks):
        for lane, steps in enumerate(lanes):
            for i in range(1, len(steps)):
                what = f"r{rank}.{lane} cut into lanes at {i}"
                yield what, partial(_cut_lane, plan, rank, lane, i)
        for lane in range(1, len(lanes)):
            what = f"r{rank} lanes {lane - 1} and {lane} changed"
            changed = (*lanes[: lane - 1], lanes[lane], lanes[lane - 1])
            whole = (*changed, *lanes[lane + 1 :])
            yield what, partial(_with_lanes, plan, rank, whole)
            joined = (*lanes[: lane - 1], lanes[lane - 1] + lanes[lane])
            whole = (*joined, *lanes[lane + 1 :])
            yield f"r{rank} lane {lane} joined", partial(_with_lanes, plan, rank, whole)
        for lane in range(len(lanes)):
            for i, step in enumerate(lanes[lane]):
                if isinstance(step, Move):
                    what = f"r{rank}.{lane} step {i} in a lane of its own"
                    yield what, partial(_own_lane, plan, rank, lane, i)
    if all(len(lanes) == 1 for lanes in plan.ranks):
        yield "reads in a lane of their own", partial(_readers_apart, plan)


def _cut_lane(plan: Plan, rank: int, lane: int, i: int) -> Plan:
    lanes = plan.ranks[rank]
    first, rest = lanes[lane][:i], lanes[lane][i:]
    whole = (*lanes[:lane], first, *lanes[lane + 1 :], rest)
    return _with_lanes(plan, rank, whole)


def _own_lane(plan: Plan, rank: int, lane: int, i: int) -> Plan:
    lanes = plan.ranks[rank]
    steps = lanes[lane]
    kept = steps[:i] + steps[i + 1 :]
    whole = (*lanes[:lane], kept, *lanes[lane + 1 :], (steps[i],))
    return _with_lanes(plan, rank, whole)


def _readers_apart(plan: Plan) -> Plan:
    """Let every rank's moves that poll packets be a second lane."""

    def polls(step: Step) -> bool:
        return isinstance(step, Move) and any(src.packets for src in step.srcs)

    ranks = tuple(
        (tuple(s for s in one if not polls(s)), tuple(s for s in one if polls(s)))
        for (one,) in plan.ranks
    )
    return replace(plan, ranks=ranks)


# What is where.


def _layout_edits(plan: Plan) -> Iterator[Edit]:
    for rank, units in enumerate(plan.stage_units):
        for by in (-1, 1):
            if units + by >= 0:
                whole = list(plan.stage_units)
                whole[rank] += by
                more = partial(replace, plan, stage_units=tuple(whole))
                yield f"r{rank} {by:+d} unit", more
        for one in range(units - 1):
            renamed = partial(_renamed, plan, rank, one + 1, one)
            yield f"r{rank} unit {one + 1} is {one}", renamed
    for i, (a, b) in enumerate(plan.atoms):
        spans = {"longer": (a, b + 1), "shifted": (a + 1, b + 1), "shorter": (a, b - 1)}
        for what, span in spans.items():
            whole2 = (*plan.atoms[:i], span, *plan.atoms[i + 1 :])
            yield f"atom {i} {what}", partial(replace, plan, atoms=whole2)
    for side in ("inputs", "outputs"):
        for rank, runs in enumerate(getattr(plan, side)):
            for j, run in enumerate(runs):
                for what, other in _other_runs(run):
                    changed = (*runs[:j], *other, *runs[j + 1 :])
                    every = list(getattr(plan, side))
                    every[rank] = changed
                    made = partial(_with_side, plan, side, tuple(every))
                    yield f"r{rank} {side} run {j} {what}", made
    yield (
        "in place" if not plan.in_place else "not in place",
        partial(replace, plan, in_place=not plan.in_place),
    )


def _other_runs(run: BufferRun) -> Iterator[tuple[str, tuple[BufferRun, ...]]]:
    yield "of the next atoms", (run._replace(atom=run.atom + 1),)
    if run.atom:
        yield "of the atoms before", (run._replace(atom=run.atom - 1),)
    yield "is gone", ()
    yield "is longer", (run._replace(stop=run.stop + 1),)
    if run.stop - run.start > 1:
        yield "is shorter", (run._replace(stop=run.stop - 1),)


def _with_side(plan: Plan, side: str, runs: tuple[tuple[BufferRun, ...], ...]) -> Plan:
    if side == "inputs":
        return replace(plan, inputs=runs)
    return replace(plan, outputs=runs)


def _renamed(plan: Plan, rank: int, unit: int, to: int) -> Plan:
    """Use one unit of a rank's staging for what another one was for, too."""

    def named(loc: Loc) -> Loc:
        if loc.rank == rank and loc.space is Space.STAGE and loc.pos == unit:
            return loc._replace(pos=to)
        return loc

    ranks = tuple(
        tuple(
            tuple(
                s._replace(
                    dsts=tuple(map(named, s.dsts)), srcs=tuple(map(named, s.srcs))
                )
                if isinstance(s, Move)
                else s
                for s in steps
            )
            for steps in lanes
        )
        for lanes in plan.ranks
    )
    return replace(plan, ranks=ranks)


# Plans anew.


def _put(plan: Plan, rank: int, lane: int, i: int, new: tuple[Step, ...]) -> Plan:
    steps = plan.ranks[rank][lane]
    return _with(plan, rank, lane, (*steps[:i], *new, *steps[i + 1 :]))


def _with(plan: Plan, rank: int, lane: int, steps: tuple[Step, ...]) -> Plan:
    lanes = plan.ranks[rank]
    return _with_lanes(plan, rank, (*lanes[:lane], steps, *lanes[lane + 1 :]))


def _with_lanes(plan: Plan, rank: int, lanes: tuple[tuple[Step, ...], ...]) -> Plan:
    ranks = (*plan.ranks[:rank], lanes, *plan.ranks[rank + 1 :])
    return replace(plan, ranks=ranks)


def _unsignalled(plan: Plan, rank: int, lane: int, i: int, gone: Signal) -> Plan:
    """Remove a signal, and count the later ones of its channel and their waits anew."""
    steps: list[Step] = []
    for index, step in enumerate(plan.ranks[rank][lane]):
        if index == i:
            continue
        if isinstance(step, Signal) and step[:2] == gone[:2] and index > i:
            step = step._replace(n=step.n - 1)
        steps.append(step)
    changed = _with(plan, rank, lane, tuple(steps))
    if gone.lane >= len(changed.ranks[gone.rank]):
        return changed
    waits: list[Step] = []
    for step in changed.ranks[gone.rank][gone.lane]:
        if isinstance(step, Wait) and step[:2] == (rank, lane) and step.n >= gone.n:
            if step.n > 1:
                waits.append(step._replace(n=step.n - 1))
        else:
            waits.append(step)
    return _with(changed, gone.rank, gone.lane, tuple(waits))
