"""What the simulator tells a recorder: the events of its lanes."""

from __future__ import annotations

from stretto.compiler.plan import Move, Signal, primitive
from stretto.executors.sim.lanes import Arrival, SimulatedLane
from stretto.trace import Event, Recorder


def record(
    recorder: Recorder,
    lane: SimulatedLane,
    what: Move | Signal | Arrival,
    began_us: float,
    nbytes: int = 0,
) -> None:
    """Record what a lane did from `began_us` to its present time."""
    if isinstance(what, Arrival):
        kind, name, peer = "wait", "wait", what.lane.rank
    elif isinstance(what, Signal):
        kind, name, peer = "signal", "signal", what.rank
    else:
        far = {loc.rank for loc in what.dsts + what.srcs} - {lane.rank}
        peer = far.pop() if len(far) == 1 else -1
        kind, name = "move", primitive(lane.rank, what).value
    recorder.record(
        Event(
            name=name,
            kind=kind,
            rank=lane.rank,
            lane=lane.index,
            t0_us=began_us,
            t1_us=lane.now_us,
            nbytes=nbytes,
            peer=peer,
            step=lane.at,
            epoch=lane.epoch,
        )
    )
