"""What a congestion control is to the packet engine: functions, and what they hear.

They are plain functions of arrays of floats, without I/O, and are compiled where Numba
is there. A flow's `state` begins with RATE (bytes a microsecond), WINDOW (bytes), WHEN
(in us: when `on_timer` is wanted, infinity for never), then its first link's rate, the
round trip's time when nothing waits, and the bytes of a packet; from OWN on it is the
algorithm's. `told` is of an ACK: when, its bytes, whether they were marked, the round
trip's time, the load of the fullest link and over which time, and how many bytes of the
flow were acknowledged and sent in all. Times are microseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

__all__ = ["OWN", "Congestion", "Handler", "Parameter", "nothing"]

RATE, WINDOW, WHEN, LINE, ROUND, PACKET, OWN = range(7)
NOW, NBYTES, MARKED, TOOK, LOAD, OVER, ACKED, SENT = range(8)

Handler: TypeAlias = Callable[[Any, Any, Any], None]
"""Takes the flow's state, the parameters, and what is told."""


def nothing(state: Any, params: Any, told: Any) -> None:
    """Do nothing: what an algorithm does about what it does not care for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One figure of an algorithm; functions get them in order, as an array."""

    name: str
    value: float
    unit: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Congestion:
    """A congestion control."""

    name: str
    about: str
    parameters: tuple[Parameter, ...] = ()
    slots: int = 0
    """Floats of its own that it keeps for every flow."""
    acks: bool = False
    """Whether every packet is acknowledged to it."""
    loads: bool = False
    """Whether packets bring what the ports on their way know (INT)."""
    cnp_us: float = 0.0
    """How often, at most, a receiver of marked packets complains; 0 for never."""
    ecn_us: tuple[float, float, float] | None = None
    """Where marking begins and ends, in us at the link's rate, and its most; None: as
    the machine's ports say."""
    begin: Handler = nothing
    on_ack: Handler = nothing
    on_cnp: Handler = nothing
    on_timer: Handler = nothing
    on_loss: Handler = nothing
    slope: float = 0.0
    """MLTCP: increases are multiplied by `offset + slope * share of bytes sent`."""
    offset: float = 1.0
