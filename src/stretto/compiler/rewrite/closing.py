"""Rewrite: close every epoch of a plan by signals, also where nothing is moved.

Packets announce themselves, so lowering counts them as what closes an epoch: whoever
has read them knows that their sender has entered. But the last tiles of a call may be
empty for some blocks, and parts of unequal size end in different tiles. What is empty
announces nothing, and a rank that waits for nobody could be two epochs ahead, where it
would overwrite packets that are still to be read. A launch of one tile needs no more
than the roll call: nobody begins the next launch but one before everybody has left.

    signal q (each q)     the first thing, ordering nothing
    ...                   the plan, its signals numbered one higher
    wait q (each q)       the last thing, where no other wait has said as much
"""

from __future__ import annotations

from dataclasses import replace

from stretto.compiler.plan import Move, Plan, Signal, Step, Wait


def with_closing_signals(plan: Plan) -> Plan:
    """Return a plan each of whose epochs is closed, however much there is to move.

    Plans without packets are: their signals never stay out, and they stay what they
    are. The others get more.
    """
    packets = any(
        loc.packets
        for _, _, _, step in plan.steps()
        if isinstance(step, Move)
        for loc in (*step.dsts, *step.srcs)
    )
    if not packets or plan.num_ranks == 1:
        return plan
    ranks = tuple(
        tuple(
            _lane(plan.num_ranks, rank, lane, steps) for lane, steps in enumerate(lanes)
        )
        for rank, lanes in enumerate(plan.ranks)
    )
    return replace(plan, ranks=ranks)


def emptied(plan: Plan) -> Plan:
    """Return what runs of a plan in an epoch that moves nothing: a barrier."""
    nothing = ((),) * plan.num_ranks
    return Plan(
        name=f"{plan.name}, with nothing to move",
        collective="barrier",
        num_ranks=plan.num_ranks,
        inputs=nothing,
        outputs=nothing,
        stage_units=(0,) * plan.num_ranks,
        ranks=tuple(
            tuple(tuple(s for s in lane if not isinstance(s, Move)) for lane in lanes)
            for lanes in plan.ranks
        ),
        hosts=plan.hosts,
    )


def _lane(n: int, rank: int, lane: int, steps: tuple[Step, ...]) -> tuple[Step, ...]:
    peers = [(rank + i) % n for i in range(1, n)]
    kept = [
        s if isinstance(s, Move) or s.lane != lane else s._replace(n=s.n + 1)
        for s in steps
    ]
    heard = {s.rank for s in kept if isinstance(s, Wait) and s.lane == lane}
    return (
        *(Signal(q, lane, 1, release=False) for q in peers),
        *kept,
        *(Wait(q, lane, 1) for q in peers if q not in heard),
    )
