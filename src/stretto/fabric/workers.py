"""Threads that do what they are given, in order: for what takes long, beside a caller.

They start when there is something to do, and end when they are told to. What a task
raises is printed as threads do, and ends nothing.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from stretto.errors import is_interruption
from stretto.fabric.loop import say_fault, start_thread

__all__ = ["Workers"]

Task = Callable[[], None]


def _nothing() -> None:
    """Do nothing."""


class Workers:
    """See the module: usually one thread, else as many as whoever gives allows."""

    def __init__(self, name: str, *, begin: Task = _nothing) -> None:
        """Start nothing yet; `begin` is called by each thread first."""
        self._name, self._begin = name, begin
        self._tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._running: set[int] = set()
        """Those that have not ended, also while they are being stopped."""
        self._lock = threading.Lock()

    def open(self, most: int = 1) -> None:
        """Have one thread more, unless there are so many."""
        with self._lock:
            number = len(self._threads)
            if number < most:
                name = f"{self._name}-{number}" if most > 1 else self._name
                thread = threading.Thread(target=self._run, name=name, daemon=True)
                self._threads.append(thread)
                try:
                    start_thread(thread)
                except BaseException:
                    self._threads.remove(thread)
                    raise

    def give(self, task: Task, most: int = 1) -> None:
        """Have a thread call something once it has done what it was given before."""
        if len(self._threads) < most:
            self.open(most)
        self._tasks.put(task)

    def apart(self, task: Task) -> None:
        """Have a thread of its own call something that may wait for others."""
        name = f"{self._name}-apart"
        start_thread(threading.Thread(target=task, name=name, daemon=True))

    @property
    def is_here(self) -> bool:
        """Return whether the caller is one of them."""
        return threading.get_ident() in self._running

    @property
    def is_empty(self) -> bool:
        """Return whether nothing waits to be done."""
        return self._tasks.empty()

    def _run(self) -> None:
        me = threading.get_ident()
        self._running.add(me)
        try:
            self._begin()
            while (task := self._tasks.get()) is not None:
                self._do(task)
        finally:
            self._running.discard(me)

    def _do(self, task: Task) -> None:
        try:
            task()
        except Exception as e:
            if is_interruption(e):
                raise
            say_fault(e)

    def stop(self, within_s: float | None = 0.0) -> None:
        """End them once they have done what they were given; wait for that so long."""
        with self._lock:
            threads, self._threads = self._threads, []
        for _ in threads:
            self._tasks.put(None)
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(within_s)
