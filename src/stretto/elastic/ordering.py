"""Order a job about: what is asked of its members, and when it has been done.

Nothing is decided here. Members hear what is asked, do it at a point where no step is
broken by it, and a generation begins; or they say why not.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from typing import Any

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
    gone = look(meeting).rank(rank).identity
    said = f"rank {rank} was not drained"
    return _done(
        meeting, "drain", [gone], lambda: _is_out(meeting, gone), said, within_s,
        stays=stays,
    )  # fmt: skip


def replace(meeting: Meeting, rank: int, *, within_s: float = _WITHIN_S) -> JobView:
    """Have a standby take the place of a rank at once, which is ended: it is late."""
    gone = look(meeting).rank(rank).identity
    said = f"rank {rank} was not replaced"
    return _done(
        meeting, "replace", [gone], lambda: _is_out(meeting, gone), said, within_s
    )


def grow(meeting: Meeting, n: int, *, within_s: float = _WITHIN_S) -> JobView:
    """Have so many more ranks: a launcher starts who stands by, where there is one."""
    want = len(look(meeting).ranks) + n
    said = f"there are not {n} more ranks"
    return _done(
        meeting, "grow", [], lambda: len(look(meeting).ranks) >= want, said, within_s,
        n=n,
    )  # fmt: skip


def _is_out(meeting: Meeting, identity: str) -> bool:
    return identity not in meeting.standing.identities


def _done(
    meeting: Meeting, verb: str, about: list[str], done: Callable[[], bool], said: str,
    within_s: float, **how: Any,
) -> JobView:  # fmt: skip
    """Ask for something, and return the job once it is so; raise why it is not."""
    order, since = secrets.token_hex(6), time.monotonic()
    meeting.standing.ask(verb, about, order=order, **how)
    try:
        meeting.standing.wait(
            lambda: done() or bool(_refused(look(meeting), order)), within_s
        )
    except StrettoError as e:
        waited_s = time.monotonic() - since
        raise MembershipError(
            f"{said}: in {waited_s:.0f} s ({e}): does the program train with "
            "stretto.torch.elastic.steps, and does anybody stand by?"
        ) from None
    seen = look(meeting)
    if (why := _refused(seen, order)) and not done():
        raise MembershipError(f"{said}: {why}")
    return seen


def _refused(seen: JobView, order: str) -> str:
    """Return what a rank says of why it does not do what was asked."""
    for one in seen.ranks:
        if one.said.get("order") == order and (why := one.said.get("refused")):
            return str(why)
    return ""
