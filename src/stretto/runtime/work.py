"""Calls that run beside the caller: one thread, one call after another, in order."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

from stretto.errors import CollectiveTimeout

__all__ = ["Work", "Worker"]


class Work:
    """A call that was started. `wait` returns its result or raises its error."""

    __slots__ = ("_done", "_error", "_result", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self._done = threading.Event()
        self._result: Any = None
        self._error: BaseException | None = None

    def __repr__(self) -> str:
        """Return the call's name and whether it is done."""
        return f"Work({self.name}, {'done' if self.is_done else 'running'})"

    @property
    def is_done(self) -> bool:
        """Return whether the call has ended, well or not."""
        return self._done.is_set()

    def wait(self, timeout_s: float | None = None) -> Any:
        """Return the result when the call has ended; raise what it raised."""
        if not self._done.wait(timeout_s):
            raise CollectiveTimeout(
                f"{self.name}: not done after {timeout_s} s; wait longer, or without "
                f"a timeout: the communicator's deadline ends every call"
            )
        if self._error is not None:
            raise self._error
        return self._result

    def _run(self, call: Callable[[], Any]) -> None:
        try:
            self._result = call()
        except BaseException as e:  # it belongs to whoever waits, whatever it is
            self._error = e
        self._done.set()


class Worker:
    """The thread that runs started calls. It ends when it is stopped."""

    def __init__(self, name: str, *, busy: Callable[[bool], None]) -> None:
        self._busy = busy
        self._calls: queue.SimpleQueue[tuple[Work, Callable[[], Any]] | None] = (
            queue.SimpleQueue()
        )
        self._lock = threading.Lock()
        self._idle = threading.Event()
        self._idle.set()
        self._pending = 0
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    @property
    def is_me(self) -> bool:
        """Return whether the caller is this thread."""
        return threading.current_thread() is self._thread

    def start(self, name: str, call: Callable[[], Any]) -> Work:
        """Queue a call and return its handle."""
        work = Work(name)
        with self._lock:
            self._pending += 1
            self._idle.clear()
            self._busy(True)
        self._calls.put((work, call))
        return work

    def wait_idle(self) -> None:
        """Return when every started call has ended."""
        self._idle.wait()

    def stop(self) -> None:
        """End the thread after the calls that were started."""
        self._calls.put(None)
        if not self.is_me:
            self._thread.join()

    def _serve(self) -> None:
        while (entry := self._calls.get()) is not None:
            work, call = entry
            work._run(call)
            with self._lock:
                self._pending -= 1
                if not self._pending:
                    self._busy(False)
                    self._idle.set()
