"""A thread beside an engine's, for what takes long; it starts when it is needed."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from stretto.errors import is_interruption
from stretto.fabric.loop import start_thread


class Mover:
    """What is to be called, one after the other."""

    def __init__(self, name: str) -> None:
        self._name, self._lock = name, threading.Lock()
        self._moves: queue.SimpleQueue[Callable[[], None] | None] | None = None

    def move(self, task: Callable[[], None]) -> None:
        """Have the thread call something."""
        with self._lock:
            if self._moves is None:
                self._moves = queue.SimpleQueue()
                start_thread(
                    threading.Thread(target=self._run, name=self._name, daemon=True)
                )
        self._moves.put(task)

    def apart(self, task: Callable[[], None]) -> None:
        """Have a thread of its own call something that may wait for others."""
        start_thread(
            threading.Thread(target=task, name=f"{self._name}-apart", daemon=True)
        )

    def _run(self) -> None:
        assert self._moves is not None, "it was made before the thread"
        while (task := self._moves.get()) is not None:
            try:
                task()
            except Exception as e:
                if is_interruption(e):
                    raise
                threading.excepthook(threading.ExceptHookArgs([type(e), e, None, None]))

    def stop(self) -> None:
        """End the thread, once it has done what it was given."""
        if self._moves is not None:
            self._moves.put(None)
