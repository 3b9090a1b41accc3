"""What a forked child must not touch: it is not the rank that its parent is.

A child inherits descriptors and objects, but no thread, and the meeting goes on without
it. So everything that could speak or act for the parent is told, in the child, to
forget: descriptors are closed there (the parent keeps its own) and nothing is said.
"""

from __future__ import annotations

import os
import weakref
from contextlib import suppress
from typing import Any, Protocol


class Inheritable(Protocol):
    """What a child inherits and must not use."""

    def forget(self) -> None:
        """Close and disable what the child has; take no lock, say nothing."""


_inherited: weakref.WeakSet[Inheritable] = weakref.WeakSet()


def forget_in_children(one: Inheritable) -> None:
    """Have `forget` called in every child that this process forks from now on."""
    _inherited.add(one)


class Refuses:
    """Stands in a child for what was its parent's: whatever is asked of it is refused.

    What is called again and again is replaced by one, and asks nothing by itself.
    """

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def __getattr__(self, name: str) -> Any:
        """Raise, whatever is asked."""
        raise self._error

    def __call__(self, *args: object, **named: object) -> Any:
        """Raise, however it is called."""
        raise self._error


def close_quietly(numbers: list[int]) -> None:
    """Close descriptors, as far as they are open."""
    for number in numbers:
        with suppress(OSError):
            os.close(number)


def _forget_all() -> None:
    for one in list(_inherited):
        with suppress(OSError):  # the others are to be forgotten all the same
            one.forget()
    _inherited.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)
