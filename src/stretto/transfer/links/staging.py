"""Who may place bytes in the stage of a link: one at a time."""

from __future__ import annotations

import threading
from typing import Any

from stretto.transfer.loader import functions


class Staging:
    """The right to place bytes, among the threads of Python and the compiled ones."""

    def __init__(self, link: Any) -> None:
        self._link, self._lock, self._depth = link, threading.RLock(), 0

    def acquire(self) -> bool:
        """Take it, unless somebody has it."""
        if not self._lock.acquire(blocking=False):
            return False
        self._entered()
        return True

    def release(self) -> None:
        """Give it back."""
        self.__exit__()

    def _entered(self) -> None:
        self._depth += 1
        if self._depth == 1 and self._link.is_quick:
            functions().enter(self._link.stage_lock)

    def __enter__(self) -> None:
        self._lock.acquire()
        self._entered()

    def __exit__(self, *error: object) -> None:
        self._depth -= 1
        if not self._depth and self._link.is_quick:
            functions().leave(self._link.stage_lock)
        self._lock.release()
