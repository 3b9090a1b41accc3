"""Why a run did not come to its end: the error that the runtime would raise."""

from __future__ import annotations

from stretto.compiler.plan import Move, Space, Wait, spell_step
from stretto.errors import CollectiveTimeout, CommunicationError, PeerLost
from stretto.executors.sim.lanes import SimulatedLane
from stretto.executors.sim.simulator import Simulator


def explain(
    engine: Simulator, deadline_us: float, time_us: float
) -> CommunicationError:
    """Return the error that names who is missing, to whom, and in which step.

    `time_us` is when the whole call would end, as far as it is known.
    """
    waiting = [
        (lane, _peer(engine, lane)) for lane in engine.alive() if lane.blocked_on
    ]
    for lane, peer in waiting:
        if engine.is_dead(peer):
            return PeerLost(f"{_where(engine, lane)} for rank {peer}, which is dead")
    for src, dst in engine.cut:
        for lane, peer in waiting:
            if (peer, lane.rank) == (src, dst):
                return CollectiveTimeout(
                    f"{_where(engine, lane)} for rank {peer}, which has no way to it: "
                    f"no chain of links that work leads from it to rank {lane.rank}"
                )
    late = f"not come after {deadline_us:g} us"
    if engine.cut:
        src, dst = next(iter(engine.cut))
        late = f"not come: rank {src} has no way to rank {dst}"
    for lane, peer in waiting:
        if all(other.rank != peer for other, _ in waiting):  # it is slow, not waiting
            return CollectiveTimeout(f"{_where(engine, lane)} for rank {peer}, {late}")
    if waiting:
        lane, peer = waiting[0]
        return CollectiveTimeout(f"{_where(engine, lane)} for rank {peer}, {late}")
    for lane in engine.alive():
        if lane.epoch < engine.epochs:  # its own data are under way, or have no way
            late = f" after {deadline_us:g} us"
            if engine.cut:
                src, dst = next(iter(engine.cut))
                late = f": rank {src} has no way to rank {dst}"
            return CollectiveTimeout(f"{_where(engine, lane, 'is still')}{late}")
    return CollectiveTimeout(
        f"{engine.plan.name}: takes {time_us:.1f} us; the deadline is {deadline_us:g}"
    )


def _where(engine: Simulator, lane: SimulatedLane, what: str = "waits") -> str:
    step = lane.steps[lane.at]
    place = engine.plan.place(step)
    told = f"{place}: " if place else ""
    return (
        f"{told}{engine.plan.name}: rank {lane.rank} {what} in step {lane.at} "
        f"({spell_step(lane.rank, step)})"
    )


def _peer(engine: Simulator, lane: SimulatedLane) -> int:
    """Return the rank that a blocked lane waits for."""
    step = lane.steps[lane.at]
    if isinstance(step, Wait):
        return step.rank
    assert lane.blocked_on is not None  # the caller chose blocked lanes
    owner, _, unit = lane.blocked_on
    for rank, _, _, other in engine.plan.steps():
        if isinstance(other, Move):
            width = other.stop - other.start
            for dst in other.dsts:
                if (dst.rank, dst.space) == (owner, Space.STAGE) and (
                    dst.pos <= unit < dst.pos + width
                ):
                    return rank
    return lane.rank
