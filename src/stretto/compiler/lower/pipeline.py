"""From a proved program and a schedule to a plan: four passes, in this order.

1. `follow_values`: which value every chunk holds; local copies vanish.
2. `place_values`: where each value is stored, by which move, in which order.
3. `save_inputs`: what must survive when the call is in place.
4. `synchronise`: every signal and wait, and the credits that close the plan.

Passes promise nothing while they run; `verify_plan` judges what comes out.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from stretto.compiler.lower.in_place import save_inputs
from stretto.compiler.lower.landing import keep_sources
from stretto.compiler.lower.placement import place_values
from stretto.compiler.lower.sync import synchronise
from stretto.compiler.lower.values import follow_values
from stretto.compiler.plan import Plan, Schedule, Way, settled_hosts
from stretto.errors import CallError, refuse_other
from stretto.program import collectives
from stretto.program.collectives import Shape
from stretto.program.ir import Program, Verified, undisturbed


@undisturbed
def lower(
    verified: Verified[Program],
    schedule: Schedule,
    *,
    in_place: bool = False,
    hosts: Sequence[Hashable] = (),
) -> Plan:
    """Return the plan that runs a program under a schedule.

    With `in_place` the plan keeps what a call whose output is its input would lose.
    `hosts` says on which host each rank is (none given: all on one). Between hosts data
    are put into staging, followed by a signal, whatever protocol the schedule names;
    one that pulls, or touches callers' memory, between hosts is refused.
    """
    proved = "a program that was proved, as verify(program) is"
    refuse_other("lower", verified, Verified, proved)
    refuse_other("lower", program := verified.value, Program, proved)
    refuse_other("lower", schedule, Schedule, 'a Schedule, as Schedule.parse("push")')
    _refuse(schedule)
    kind = collectives.get(program.collective)
    shape = Shape.of(program)
    where = settled_hosts(hosts, program.num_ranks)
    flow = follow_values(program, kind, shape, schedule, where)
    placement = place_values(flow, kind, shape, in_place=in_place, hosts=where)
    moves, units = placement.moves, list(placement.units)
    if in_place:
        moves, units = save_inputs(placement, kind, shape)
        if where:
            moves, units = keep_sources(placement, moves, units, kind, shape, where)
    return Plan(
        name=program.name,
        collective=program.collective,
        num_ranks=program.num_ranks,
        split=program.split,
        params=program.params,
        schedule=schedule,
        in_place=in_place,
        atoms=placement.atoms,
        inputs=placement.inputs,
        outputs=placement.outputs,
        stage_units=tuple(units),
        ranks=tuple((steps,) for steps in synchronise(moves, program.num_ranks, where)),
        hosts=where,
        ways=tuple(
            Way(number, src.rank, op.dst.rank, via)
            for number, op in enumerate(program.ops)
            for src, via in zip(op.srcs, op.via, strict=False)
            if via is not None and src.rank != op.dst.rank
        ),
        places=tuple(map(program.place, program.ops)),
        by_hand=program.by_hand,
    )


def _refuse(schedule: Schedule) -> None:
    for how in (schedule, *(schedule.of(phase) for phase in schedule.phases)):
        packets = how.protocol == "packets"
        if packets and (how.direction == "pull" or how.memory != "staged"):
            raise CallError(
                f"schedule {how}: packets announce themselves where they are pushed, "
                "in staging; want push and staged, or bulk"
            )
        if how.memory == "across" and how.protocol != "bulk":
            raise CallError(
                f"schedule {how}: the kernel copies across what is plain; want bulk"
            )
