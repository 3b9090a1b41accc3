"""Started calls of one group, in order: run by whoever waits first, or by a thread.

Most calls that are started are waited for soon, and then the one who waits runs them:
no thread is woken, and nothing is handed over. A thread of the group's looks twice a
millisecond, while calls are started, and runs what it has seen before, so that calls go
on beside the caller and nobody else waits in vain for one that this rank has started.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from stretto.errors import CollectiveTimeout
from stretto.fabric.forks import Refuses
from stretto.torch.faults import as_torch
from stretto.torch.works import Started

_LOOK_S = 0.5e-3
_LOOKS = 40
"""So often it looks in vain before it sleeps until it is woken."""


class CallQueue:
    """The calls of one group that were started and have not run."""

    def __init__(self, name: str) -> None:
        self.lock = threading.RLock()
        """Held by whoever uses the group's communicator."""
        self.calls: deque[Started] = deque()
        self._name = name
        self._bell = threading.Lock()
        self._bell.acquire()
        self._asleep = False
        self._thread: threading.Thread | None = None
        self._hurried: Started | None = None
        self._closed = False
        self._run: tuple[Started, ...] = ()
        """The one that is running; what has ended is kept by nobody here."""

    def start(self, run: Callable[[], None], tensors: list[Any]) -> Started:
        """Add a call and return its Work."""
        work = Started(self, run, tensors)
        self.calls.append(work)
        if self._asleep or self._thread is None:
            self._wake()
        return work

    def hurry(self, work: Started) -> None:
        """Let the thread run a call now; the thread itself does so at once."""
        if threading.current_thread() is self._thread:
            self.finish(work)
            return
        self._hurried = work
        self._wake()

    def finish(
        self, work: Started | None = None, timeout_s: float | None = None
    ) -> None:
        """Run all calls up to this one, or all there are; wait if they are running.

        With a timeout the thread runs them, and is waited for.
        """
        if timeout_s is not None and work is not None:
            self._await(work, timeout_s)
            return
        ended: list[Started] = []
        try:
            with self.lock:
                while work is None or not work.is_over:
                    head = self._next()
                    if head is None:
                        break
                    self._run = (head,)
                    if head.run():
                        ended.append(head)
                    self._run = ()
        finally:
            for one in ended:
                one.tell()

    def _next(self) -> Started | None:
        """Take the first call, if there is one: others may be discarding them."""
        try:
            return self.calls.popleft()
        except IndexError:
            return None

    def _await(self, work: Started, timeout_s: float) -> None:
        until = time.monotonic() + timeout_s
        self.hurry(work)
        while not work.is_over:
            if time.monotonic() > until:
                raise as_torch(
                    CollectiveTimeout(
                        f"group {self._name!r}: a started call is not done after "
                        f"{timeout_s:g} s; wait again, or without a timeout: the "
                        f"group's own ends every call"
                    )
                )
            time.sleep(50e-6)

    def close(self) -> None:
        """Run what was started, and end the thread."""
        try:
            self.finish()
        finally:
            self._end(5.0)

    def discard(self, error: BaseException) -> None:
        """Run nothing more: who waits for what was started gets this error."""
        while (work := self._next()) is not None:
            if work.end(as_torch(error)):
                work.tell()
        self._end(0.0)

    def forget(self, error: BaseException) -> None:
        """Refuse everything in a forked child: no thread that runs calls is here."""
        self.lock, self._thread, self._closed = threading.RLock(), None, True
        for work in (*self.calls, *self._run):
            if not work.is_over:
                work.end(error)
        self.calls.clear()
        for name in ("finish", "start", "hurry"):
            setattr(self, name, Refuses(error))

    def leave(self, within_s: float) -> None:
        """End, with what was started if it can be run so soon."""
        last = self.calls[-1] if self.calls else None
        if last is not None:
            self.hurry(last)
            until = time.monotonic() + within_s
            while not last.is_over and time.monotonic() < until:
                time.sleep(1e-3)
        self._end(0.5)

    def _end(self, within_s: float) -> None:
        self._closed = True
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            self._ring()
            thread.join(within_s)

    def _wake(self) -> None:
        if self._thread is None and not self._closed:
            self._thread = threading.Thread(
                target=self._serve, name=f"stretto-torch-{self._name}", daemon=True
            )
            self._thread.start()
        self._asleep = False
        self._ring()

    def _ring(self) -> None:
        with contextlib.suppress(RuntimeError):  # it rings already
            self._bell.release()

    def _serve(self) -> None:
        seen: Started | None = None
        vain = 0
        while not self._closed:
            self._bell.acquire(timeout=-1 if self._asleep else _LOOK_S)
            hurried, self._hurried = self._hurried, None
            if hurried is not None and not hurried.is_over:
                self.finish(hurried)
            head = self.calls[0] if self.calls else None
            if head is None:
                vain += 1
                if vain > _LOOKS:
                    vain = 0
                    self._sleep()
            else:
                vain = 0
                if head is seen:
                    self.finish(head)
            seen = head

    def _sleep(self) -> None:
        """Wait to be woken, unless a call came while this was decided."""
        self._asleep = True
        if self.calls or self._hurried is not None or self._closed:
            self._asleep = False
