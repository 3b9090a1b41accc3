"""What a machine is made of: links, switches, and what steps cost."""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["Costs", "Link", "Ports", "Switch"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A one-way connection between two nodes."""

    src: int
    dst: int
    bandwidth_gbytes_per_s: float
    """10^9 bytes a second; 0 when the link is dead."""
    latency_us: float
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """A node that forwards and is nobody's rank."""

    name: str
    copies: bool = False
    """Whether published schedules let it send one arrival out of several ports."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """How switches queue, mark and pause, and how flows are spread over equal routes.

    Bytes are given as the time that the link needs for them, so that one figure serves
    every rate. The defaults are those of the HPCC authors' simulations.
    """

    packet_nbytes: int = 1000
    buffer_us: float = 2560.0
    """Of a whole switch, at the rate of its fastest link: 16 MB at 50 Gb/s."""
    ecn_min_us: float = 32.0
    """Where marking begins: 100 KB at 25 Gb/s."""
    ecn_max_us: float = 128.0
    """From where on every packet is marked: 400 KB at 25 Gb/s."""
    ecn_max_share: float = 0.2
    """Which share of the packets is marked just below that."""
    pause_share: float = 0.125
    """A link is paused when it holds more than this share of the free buffer."""
    pauses: bool = True
    """Whether switches pause links (PFC); else they drop what they have no room for."""
    spreads: bool = False
    """Whether a flow takes one of the equally good routes, by a hash."""
    hash_seed: int = 0

    def ecn_min_nbytes(self, gbytes_per_s: float) -> float:
        """Return where marking begins on a link of that rate."""
        return self.ecn_min_us * gbytes_per_s * 1e3

    def ecn_max_nbytes(self, gbytes_per_s: float) -> float:
        """Return from where on all is marked on a link of that rate."""
        return self.ecn_max_us * gbytes_per_s * 1e3


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What a step costs beside its links. The defaults leave the pure link model."""

    launch_us: float = 0.0
    """Once a call, before the first step."""
    op_overhead_us: float = 0.0
    """Every time that a lane starts to move or combine something."""
    flag_latency_us: float = 0.0
    """What a signal takes beyond the latency of its route: fence, store, poll."""
    copy_gbytes_per_s: float = math.inf
    """A lane copying inside its rank's memory."""
    reduce_gbytes_per_s: float = math.inf
    """A lane combining inside its rank's memory, per byte of result and source."""
    lane_gbytes_per_s: float = math.inf
    """The most that a lane can push or pull, however many blocks it has."""
    block_gbytes_per_s: float = math.inf
    """The most that each block of a lane adds to that."""
    pull_gbytes_per_s: float = math.inf
    """The most that a lane can pull: loads wait for an answer, stores do not."""
    message_us: float = 0.0
    """Every signal to a rank on another host, and every one that is awaited from there:
    a call of the system."""
    engine_us: float = 0.0
    """Once a call of copy engines, beside its launch: they are told, and waited for."""
    engine_gbytes_per_s: float = math.inf
    """The most that the copy engines of a rank move; blocks are none of theirs."""
    packet_efficiency: float = 1.0
    """Payload over bytes on the wire when data announce themselves."""
    background_puts: bool = False
    """Whether a lane goes on while what it put is still leaving."""
