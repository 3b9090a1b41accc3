"""What an engine's thread serves, and what is asked of it from beneath."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol

__all__ = ["Endable", "LoopLike", "Taker"]


class Endable(Protocol):
    """Something that has ended, or will."""

    def done(self) -> bool:
        """Return whether it has."""

    def event(self) -> threading.Event:
        """Return what is set when it does."""

    def then(self, call: Callable[[], None]) -> None:
        """Call something when it does; at once if it has."""


class Taker(Protocol):
    """Who takes what comes by a link."""

    link: Any

    def take(self, record: tuple[int, ...]) -> None:
        """Deal with a record; whatever it raises ends the connection."""

    @property
    def waits(self) -> bool:
        """Return whether something waits for room."""

    def pump(self) -> None:
        """Go on with what waited for room."""

    def lose(self, why: str) -> None:
        """End the connection."""


class LoopLike(Protocol):
    """An engine's thread, as what is under way needs it."""

    def check(self) -> None:
        """Raise in a child that was forked from the engine's process."""

    def wait_for(self, pending: Endable, until: float | None) -> bool:
        """Wait until something has ended; return whether it has."""

    def wake(self) -> None:
        """Have the thread look around."""

    def at(self, when: float, task: Callable[[], None]) -> Any:
        """Have the thread call something at a time."""

    @property
    def move(self) -> Callable[[Callable[[], None]], None]:
        """Return what has another thread call what takes long."""
