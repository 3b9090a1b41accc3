"""What is recorded about a run: one event for everything that took time."""

from __future__ import annotations

from typing import NamedTuple

KINDS = ("collective", "move", "signal", "wait", "fault", "host")
"""A whole call; data moved or combined; a flag raised; time spent waiting for one;
something that failed; work of the host around a call."""


class Event(NamedTuple):
    """Something that a lane of a rank did between two moments.

    The times of all ranks are on one clock: virtual time in the simulator, the
    machine's monotonic clock where processes run.
    """

    name: str
    """What people call it: `put`, `reduce_packets`, `all_reduce/ring`."""
    rank: int
    t0_us: float
    t1_us: float
    kind: str = "move"
    lane: int = 0
    nbytes: int = 0
    peer: int = -1
    """The other rank, or -1 when there is none, or more than one."""
    step: int = -1
    """The index of the step in its lane: the plan says what it is."""
    epoch: int = 0
