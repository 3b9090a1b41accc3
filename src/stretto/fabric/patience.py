"""How long one waits for another, and how many may wait; and what users say of it."""

from __future__ import annotations

import select
from numbers import Integral, Real
from typing import Any, Protocol

from stretto.errors import CallError

STRANGER_S = 60.0
"""For who has proved nothing, while there is room: a busy host takes seconds to answer,
and slow is not wrong. It also bounds what a silent one holds."""
MOST_STRANGERS = 128
"""At one door: the ranks of a large host that come at once, and few descriptors."""
NO_ROOM_S = 0.05
"""Until somebody may come again when this process can open no more descriptors."""
DIAL_S = 5.0
"""For a host to take a connection: the kernel asks again after one second, and three.
"""
HOP_S = 30.0
"""For two engines' carrier to connect, each of which may be busy with a third."""
CROSSED_S = 5.0
"""For an engine to come that says it is on its way: it has a connection by then."""
CLOSING_S = 2.0
"""For somebody to read the last that he is told; who is alive does so at once."""
LONGEST_S = 1e9
"""What anybody may wait, in numbers that every clock has."""
MOST_RANKS = 4096
"""The hub hands a descriptor of every rank's process to every rank."""


def check_deadline(given: Any, what: str, word: str = "deadline_s") -> float:
    """Return a deadline in seconds, when it is one."""
    is_number = isinstance(given, Real) and not isinstance(given, bool)
    if is_number and 0 < given <= LONGEST_S:
        return float(given)
    raise CallError(
        f"{what}: {word}={str(given)[:40]}; want seconds, more than 0 and at most "
        f"{LONGEST_S:g}"
    )


def check_timeout(given: Any, what: str, word: str = "timeout") -> None:
    """Refuse what is no time to wait for: 0 only looks, None waits as long as it takes.

    Of nan, every comparison is false: whoever waits until then waits for ever.
    """
    if given is None:
        return
    is_number = isinstance(given, Real) and not isinstance(given, bool)
    if not is_number or not 0 <= given <= LONGEST_S:
        raise CallError(
            f"{what}: {word}={str(given)[:40]}; want seconds, 0 or more and at most "
            f"{LONGEST_S:g}, or None"
        )


def check_num_ranks(given: Any, what: str) -> int:
    """Return a number of ranks, when so many can meet."""
    is_number = isinstance(given, Integral) and not isinstance(given, bool)
    if is_number and 1 <= given <= MOST_RANKS:
        return int(given)
    raise CallError(
        f"{what}: num_ranks={str(given)[:40]}; at least one rank is needed, and at "
        f"most {MOST_RANKS} can meet"
    )


def readable(file: Any, within_s: float) -> bool:
    """Wait until something can be read; `select` knows no number above 1023."""
    poll = select.poll()
    poll.register(file, select.POLLIN)
    return bool(poll.poll(max(0.0, within_s) * 1e3))


class HasDeadline(Protocol):
    """A group, as far as a wait is concerned."""

    deadline_s: float


class Patience:
    """One wait's deadline, asked between two looks at what is waited for.

    A deadline that becomes shorter (a member has closed: what it sent is there, or is
    on its way) counts from then on. And no wait is over that was not when last asked:
    what it waits for may have come with the news, or while this process stood still,
    and is looked for once more.
    """

    def __init__(self, group: HasDeadline) -> None:
        self._group = group
        self._deadline_s = group.deadline_s
        self._shorter_at_s = 0.0
        self._was_over = False

    def is_over(self, since_s: float, now_s: float) -> bool:
        """Whether a wait without progress since then has lasted too long."""
        deadline_s = self._group.deadline_s
        if deadline_s < self._deadline_s:
            self._shorter_at_s = now_s
        self._deadline_s = deadline_s
        was_over = self._was_over
        self._was_over = now_s - max(since_s, self._shorter_at_s) > deadline_s
        return was_over and self._was_over
