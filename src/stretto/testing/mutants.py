"""Programs and plans with one thing wrong: what a proof must not let pass.

Every mutant drops, doubles, swaps or retargets one operation or step, or removes one
signal or wait. Some compute the same all the same (a copy done twice); whoever accepts
one must be right about it, which `interpret` and the simulator can judge.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from stretto.ir import INPUT, Op, Program, Ref
from stretto.plan import Loc, Move, Plan, Signal, Space, Step, Wait

__all__ = ["plan_mutants", "program_mutants"]


def program_mutants(program: Program) -> Iterator[tuple[str, Program]]:
    """Yield what was done and the program with it."""
    ops = program.ops
    for i, op in enumerate(ops):
        yield f"drop {i}", replace(program, ops=ops[:i] + ops[i + 1 :])
        yield f"double {i}", replace(program, ops=(*ops[:i], op, *ops[i:]))
        if i + 1 < len(ops):
            swapped = (*ops[:i], ops[i + 1], op, *ops[i + 2 :])
            yield f"swap {i}", replace(program, ops=swapped)
        for what, other in _retargeted(program, op):
            changed = (*ops[:i], other, *ops[i + 1 :])
            yield f"{what} {i}", replace(program, ops=changed)


def _retargeted(program: Program, op: Op) -> Iterator[tuple[str, Op]]:
    n = program.num_ranks
    dst = op.dst
    yield "other rank", op._replace(dst=dst._replace(rank=(dst.rank + 1) % n))
    yield "other chunk", op._replace(dst=_next(dst))
    for j, src in enumerate(op.srcs):
        sources = list(op.srcs)
        sources[j] = src._replace(rank=(src.rank + 1) % n)
        yield f"other source {j} of", op._replace(srcs=tuple(sources))
        sources[j] = _next(src)
        yield f"other source chunk {j} of", op._replace(srcs=tuple(sources))
        if len(op.srcs) > 1:
            rest = op.srcs[:j] + op.srcs[j + 1 :]
            yield f"without source {j}", op._replace(srcs=rest)
        sources[j] = src._replace(buffer=INPUT)
        yield f"input for source {j} of", op._replace(srcs=tuple(sources))


def _next(ref: Ref) -> Ref:
    """Return the chunks before, or after at the start of a buffer."""
    by = -1 if ref.start else 1
    return ref._replace(start=ref.start + by, stop=ref.stop + by)


def plan_mutants(plan: Plan) -> Iterator[tuple[str, Plan]]:
    """Yield what was done and the plan with it."""
    for rank, lane, i, step in plan.steps():
        steps = plan.ranks[rank][lane]
        at = f"r{rank}.{lane} step {i}"
        if isinstance(step, Signal):
            yield f"no signal at {at}", _unsignalled(plan, rank, lane, i, step)
            if step.release:
                weak = step._replace(release=False)
                yield f"relaxed at {at}", _put(plan, rank, lane, i, (weak,))
        else:
            yield f"drop {at}", _put(plan, rank, lane, i, ())
        if isinstance(step, Wait) and step.n > 1:
            early = step._replace(n=step.n - 1)
            yield f"early wait at {at}", _put(plan, rank, lane, i, (early,))
        if i + 1 < len(steps):
            swapped = (*steps[:i], steps[i + 1], step, *steps[i + 2 :])
            yield f"swap {at}", _with(plan, rank, lane, swapped)
        if isinstance(step, Move):
            yield f"double {at}", _put(plan, rank, lane, i, (step, step))
            for what, other in _moved(plan, step):
                yield f"{what} at {at}", _put(plan, rank, lane, i, (other,))


def _moved(plan: Plan, move: Move) -> Iterator[tuple[str, Move]]:
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
        for what, other in _elsewhere(plan, src):
            changed = (*move.srcs[:j], other, *move.srcs[j + 1 :])
            yield f"{what} of source {j}", move._replace(srcs=changed)
    yield "other finish", move._replace(finish=not move.finish)


def _elsewhere(plan: Plan, loc: Loc) -> Iterator[tuple[str, Loc]]:
    yield "other rank", loc._replace(rank=(loc.rank + 1) % plan.num_ranks)
    yield "other place", loc._replace(pos=loc.pos - 1 if loc.pos else 1)
    if loc.space is Space.STAGE:
        yield "other announcement", loc._replace(packets=not loc.packets)


def _put(plan: Plan, rank: int, lane: int, i: int, new: tuple[Step, ...]) -> Plan:
    steps = plan.ranks[rank][lane]
    return _with(plan, rank, lane, (*steps[:i], *new, *steps[i + 1 :]))


def _with(plan: Plan, rank: int, lane: int, steps: tuple[Step, ...]) -> Plan:
    lanes = plan.ranks[rank]
    changed = (*lanes[:lane], steps, *lanes[lane + 1 :])
    ranks = (*plan.ranks[:rank], changed, *plan.ranks[rank + 1 :])
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
    waits: list[Step] = []
    for step in changed.ranks[gone.rank][gone.lane]:
        if isinstance(step, Wait) and step[:2] == (rank, lane) and step.n >= gone.n:
            if step.n > 1:
                waits.append(step._replace(n=step.n - 1))
        else:
            waits.append(step)
    return _with(changed, gone.rank, gone.lane, tuple(waits))
