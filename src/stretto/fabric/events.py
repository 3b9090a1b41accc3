"""What happens to the hub, and what it does about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stretto.fabric.faults import Fault
from stretto.fabric.messages import Message

Descriptor = Any
"""A file descriptor: whatever the shell passes with a message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """A message came on a link (any number that stands for a connection)."""

    link: int
    message: Message
    descriptors: tuple[Descriptor, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed:
    """A link ended, or had to be ended; `why` continues "rank 1 ..."."""

    link: int
    why: str = "died: its connection ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class Died:
    """The launcher knows how a rank ended; its link may not have ended yet."""

    rank: int
    """That it came to be."""
    how: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveUp:
    """The host knows that the ranks cannot meet."""

    fault: Fault


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnedAway:
    """Somebody was not let in. It may have been a rank that others wait for."""

    who: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NoRoom:
    """The host can let nobody in, for want of descriptors; it tries again."""

    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """Time passed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """Send a message on a link."""

    link: int
    message: Message
    descriptors: tuple[Descriptor, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop:
    """End a link, after what was sent on it."""

    link: int


Event = Heard | Closed | Died | GiveUp | TurnedAway | NoRoom | Tick
Action = Send | Drop
