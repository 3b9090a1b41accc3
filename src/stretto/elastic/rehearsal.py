"""Rehearse a loss: end a rank, and see where the time goes until the next step.

Ranks say when each phase ended, by the clock that all processes of a host share.
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass, field

from stretto.elastic.looking import look
from stretto.errors import CallError, StrettoError
from stretto.fabric.meeting.meeting import Meeting

PHASES = ("noticed", "agreed", "fenced", "switched", "state", "first step")
"""What ranks go through, in this order."""
_WITHIN_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Downtime:
    """How long each phase took, since the one before: on the rank that was last."""

    rank: int
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def downtime_s(self) -> float:
        """From the signal to the end of the first step that was committed after it."""
        return sum(self.seconds.values())


def rehearse(
    meeting: Meeting, rank: int, *, after_s: float = 0.0, within_s: float = _WITHIN_S
) -> Downtime:
    """Kill a rank of this host after a time, and return the downtime by phase."""
    time.sleep(after_s)
    seen = look(meeting)
    one = seen.rank(rank)
    want = seen.generation + 1
    killed = time.monotonic()
    try:
        os.kill(one.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError) as e:
        raise CallError(
            f"rank {rank} (pid {one.pid}, on {one.host or 'this host'}) cannot be "
            f"ended from here: {e}"
        ) from None

    def told() -> list[dict[str, float]]:
        said = [m.said.get("recovery", {}) for m in look(meeting).ranks]
        return [one["at"] for one in said if one.get("generation", 0) >= want]

    try:
        meeting.standing.wait(lambda: _are_whole(told()), within_s)
    except StrettoError as e:
        raise CallError(f"the job did not go on within {within_s:g} s: {e}") from None
    return Downtime(rank=rank, seconds=phases(killed, told()))


def _are_whole(said: list[dict[str, float]]) -> bool:
    return bool(said) and all(PHASES[-1] in one for one in said)


def phases(killed: float, said: list[dict[str, float]]) -> dict[str, float]:
    """Return the time of each phase; the last rank to end one ends it for all."""
    found, before = {}, killed
    for phase in PHASES:
        ends = [one[phase] for one in said if phase in one]
        end = max([before, *ends])
        found[phase] = end - before
        before = end
    return found
