"""How long one waits for another, and how many may wait; and what users say of it."""

from __future__ import annotations

import select
from numbers import Integral, Real
from typing import Any

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
