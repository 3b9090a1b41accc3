"""Order a job about: what is asked of its members, and when it has been done.

Nothing is decided here. Members hear what is asked, do it at a point where no step is
broken by it, and a generation begins; or they say why not.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from stretto.elastic.looking import JobView, look
from stretto.errors import MembershipError, StrettoError
from stretto.fabric.meeting.meeting import Meeting

_WITHIN_S = 60.0


def drain(
    meeting: Meeting, rank: int, *, stays: bool = False, within_s: float = _WITHIN_S
) -> JobView:
    """Have a standby take over from a rank between two steps; return what is then.

    The rank hands its state over and ends, or (`stays`) stands by from then on.
    """
    one = look(meeting).rank(rank)
    meeting.standing.ask("drain", [one.identity], stays=stays)
    said = f"rank {rank} was not drained"
    return _await(meeting, lambda: _is_out(meeting, one.identity), said, within_s)


def replace(meeting: Meeting, rank: int, *, within_s: float = _WITHIN_S) -> JobView:
    """Have a standby take the place of a rank at once, which is ended: it is late."""
    one = look(meeting).rank(rank)
    meeting.standing.ask("replace", [one.identity])
    said = f"rank {rank} was not replaced"
    return _await(meeting, lambda: _is_out(meeting, one.identity), said, within_s)


def grow(meeting: Meeting, n: int, *, within_s: float = _WITHIN_S) -> JobView:
    """Have so many more ranks: a launcher starts who stands by, where there is one."""
    before = len(look(meeting).ranks)
    meeting.standing.ask("grow", n=n)
    said = f"there are not {n} more ranks"
    return _await(
        meeting, lambda: len(look(meeting).ranks) >= before + n, said, within_s
    )


def _is_out(meeting: Meeting, identity: str) -> bool:
    return identity not in meeting.standing.identities


def _await(
    meeting: Meeting, done: Callable[[], bool], said: str, within_s: float
) -> JobView:
    """Return the job once something is so; raise why it is not."""
    since = time.monotonic()
    try:
        meeting.standing.wait(done, within_s)
    except StrettoError as e:
        waited_s = time.monotonic() - since
        why = _refused(look(meeting)) or (
            f"in {waited_s:.0f} s ({e}): does the program train with "
            "stretto.torch.elastic.steps, and does anybody stand by?"
        )
        raise MembershipError(f"{said}: {why}") from None
    return look(meeting)


def _refused(seen: JobView) -> str:
    """Return what a rank says of why it does not do what was asked."""
    found = [str(one.said["refused"]) for one in seen.ranks if one.said.get("refused")]
    return found[-1] if found else ""
