"""What is recorded about a run: one frozen event for everything that took time."""

from __future__ import annotations

from dataclasses import dataclass

KINDS = ("collective", "move", "signal", "wait", "fault", "host")
"""A whole call; data moved or combined; a flag raised; time spent waiting for one;
something that failed; work of the host around a call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that a lane of a rank did between two moments.

    The times of all ranks are on one clock: virtual time in the simulator, the
    machine's monotonic clock where processes run.
    """

    name: str
    """What people call it: `put`, `reduce_packets`, `all_reduce/ring`."""
    kind: str = "move"
    rank: int
    lane: int = 0
    t0_us: float
    t1_us: float
    nbytes: int = 0
    peer: int = -1
    """The other rank, or -1 when there is none, or more than one."""
    step: int = -1
    """The index of the step in its lane."""
    epoch: int = 0
    detail: str = ""
    """The step as the plan prints it, or the author's line."""
