"""Who may place bytes in the stage of a link: one at a time."""

from __future__ import annotations

import threading

from stretto.transfer.loader import functions


class Staging:
    """The right to place bytes, among the threads of Python and the compiled ones."""

    def __init__(self, word: int) -> None:
        """`word` is where compiled threads say that they place some; 0: none do."""
        self._word, self._lock, self._depth = word, threading.RLock(), 0

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
        if self._depth == 1 and self._word:
            functions().enter(self._word)

    def __enter__(self) -> None:
        self._lock.acquire()
        self._entered()

    def __exit__(self, *error: object) -> None:
        self._depth -= 1
        if not self._depth and self._word:
            functions().leave(self._word)
        self._lock.release()
