"""What a simulation found: times, rates, loads, and the path that set the time."""

from __future__ import annotations

from dataclasses import dataclass, field

from stretto.executors.sim.lanes import SimulatedLane
from stretto.executors.sim.simulator import Simulator
from stretto.trace import Event

_LONGEST_PATH = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkLoad:
    """What one link carried, and the share of the time that it was busy, 0 to 1."""

    name: str
    nbytes: float
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """A plan's run on a machine, in virtual time."""

    plan: str
    machine: str
    nbytes: int
    """The full vector: all_gather's output, reduce_scatter's input, else a buffer."""
    time_us: float
    algbw_gbps: float
    """10^9 bytes a second: `nbytes` over the time."""
    busbw_gbps: float
    """The same, made comparable between collectives as nccl-tests does."""
    epochs: int
    """Tiles, one after another; `simulated_epochs` of them were run, in full."""
    simulated_epochs: int
    num_transfers: int
    links: tuple[LinkLoad, ...] = field(repr=False)
    """Links that carried something, the busiest first."""
    critical_path: tuple[Event, ...] = field(repr=False)
    """From the start to the end, who kept everybody waiting, lane by lane."""


def link_loads(engine: Simulator, time_us: float) -> tuple[LinkLoad, ...]:
    """Return what the links carried in the epochs that were run."""
    carried = zip(engine.machine.links, engine.network.link_nbytes, strict=True)
    loads = [
        LinkLoad(
            name=link.name,
            nbytes=nbytes,
            share=nbytes / (link.bandwidth_gbytes_per_s * 1e3 * time_us),
        )
        for link, nbytes in carried
        if nbytes
    ]
    return tuple(sorted(loads, key=lambda load: (-load.share, load.name)))


def critical_path(engine: Simulator) -> tuple[Event, ...]:
    """Walk back from the lane that ends last, to whom it waited for, to the start."""
    path: list[Event] = []
    lane: SimulatedLane | None = max(
        engine.alive(), key=lambda k: k.now_us, default=None
    )
    until = lane.now_us if lane else 0.0
    while lane is not None and len(path) < _LONGEST_PATH:
        late = next((c for c in reversed(lane.causes) if c.at_us <= until), None)
        began = late.at_us if late else 0.0
        waited_for = late.lane.rank if late else -1
        path.append(_own(lane, began, until, waited_for))
        if late is None:
            break
        path.append(
            Event(
                name="transfer",
                kind="wait",
                rank=late.lane.rank,
                lane=late.lane.index,
                t0_us=late.left_us,
                t1_us=late.at_us,
                peer=lane.rank,
            )
        )
        lane, until = late.lane, late.left_us
    return tuple(reversed(path))


def _own(lane: SimulatedLane, began: float, until: float, peer: int) -> Event:
    return Event(
        name="work",
        rank=lane.rank,
        lane=lane.index,
        t0_us=min(began, until),
        t1_us=until,
        peer=peer,
    )
