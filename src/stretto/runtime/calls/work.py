"""Calls that were started: by a thread on the CPU, up to a mark in a stream on GPUs.

The thread runs one call after another, in the order in which they were started. A call
on a GPU runs beside the caller anyway: it is enqueued where it was started, on the
stream that was current there, and what is left of it is to have been reached.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from stretto.errors import CallError, CollectiveTimeout, CommunicatorBroken
from stretto.fabric.forks import forget_in_children
from stretto.fabric.patience import check_timeout
from stretto.fabric.workers import Workers
from stretto.trace import blocked

_LOOK_S = 50e-6


class Mark(Protocol):
    """A point in a stream of the GPU."""

    captured: bool
    """Whether it was made in a graph, which runs when it is replayed."""

    @property
    def is_reached(self) -> bool:
        """Return whether the stream has come to it."""

    def follow(self) -> None:
        """Let what the caller's current stream is given from now on wait for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """What is left of a call once it has been enqueued."""

    mark: Mark
    hear: Callable[[], None]
    """Raises what the launches so far have met."""
    kept: Any = None
    """What must live until then."""


class Work:
    """A call that was started. `wait` returns its result or raises its error."""

    __slots__ = ("_done", "_error", "_result", "_tail", "_worker", "name")

    def __init__(self, name: str, worker: CallThread | None = None) -> None:
        self.name, self._worker = name, worker
        self._done = threading.Event()
        self._result: Any = None
        self._error: BaseException | None = None
        self._tail: Tail | None = None

    def __repr__(self) -> str:
        """Return the call's name and whether it is done."""
        return f"Work({self.name}, {'done' if self.is_done else 'running'})"

    @property
    def is_done(self) -> bool:
        """Return whether the call has ended, well or not."""
        if not self._done.is_set() or self._tail is None:
            if not self._done.is_set() and self._worker is not None:
                self._worker.check()
            return self._done.is_set()
        return not self._tail.mark.captured and self._tail.mark.is_reached

    def wait(self, timeout_s: float | None = None) -> Any:
        """Return the result when the call has ended; raise what it raised.

        On GPUs the host does not wait, unless a timeout is given: the caller's current
        stream does, and what launches have met so far is raised. With a timeout the
        call has ended on the GPU too, and what it met itself is raised.
        """
        if timeout_s is not None:
            check_timeout(timeout_s, self.name, "timeout_s")
        stop_at = None if timeout_s is None else time.monotonic() + timeout_s
        if not self._done.is_set():
            if self._worker is not None:
                self._worker.check()
            since_ns = time.monotonic_ns()
            ended = self._done.wait(timeout_s)
            blocked(since_ns)
            if not ended:
                raise self._late(timeout_s)
        if self._error is not None:
            raise self._error
        tail = self._tail
        if tail is not None:
            if stop_at is None:
                tail.mark.follow()
            else:
                self._watch(tail, stop_at, timeout_s)
            tail.hear()
        return self._result

    def _watch(self, tail: Tail, stop_at: float, timeout_s: float | None) -> None:
        """Hold the host until the GPU has come to the end of the call."""
        if tail.mark.captured:
            raise CallError(
                f"{self.name}: wait({timeout_s}) for a call that was captured in a "
                f"graph, which runs when that is replayed; want wait(), and to "
                f"synchronise the stream that replays"
            )
        while not tail.mark.is_reached:
            tail.hear()
            if time.monotonic() > stop_at:
                raise self._late(timeout_s)
            time.sleep(_LOOK_S)

    def _late(self, timeout_s: float | None) -> CollectiveTimeout:
        return CollectiveTimeout(
            f"{self.name}: not done after {timeout_s} s; wait longer, or without "
            f"a timeout: the communicator's deadline ends every call"
        )

    def _run(
        self, call: Callable[[], Any], rest: Callable[[], Tail] | None = None
    ) -> None:
        try:
            self._result = call()
            if rest is not None:
                self._tail = rest()
        except BaseException as e:  # it belongs to whoever waits, whatever it is
            self._error = e
        self._done.set()

    @classmethod
    def enqueued(
        cls, name: str, call: Callable[[], Any], rest: Callable[[], Tail]
    ) -> Work:
        """Return a call that is made here and now; what it raises, it raises here."""
        work = cls(name)
        work._run(call, rest)
        if work._error is not None:
            raise work._error
        return work


class CallThread:
    """The thread that runs started calls. It ends when it is stopped."""

    def __init__(self, name: str, *, busy: Callable[[bool], None]) -> None:
        self._busy = busy
        self._workers = Workers(name)
        self._lock = threading.Lock()
        self._idle = threading.Event()
        self._idle.set()
        self._pending = 0
        self._refusal = ""
        forget_in_children(self)
        self._workers.open()

    @property
    def is_me(self) -> bool:
        """Return whether the caller is this thread."""
        return self._workers.is_here

    @property
    def is_idle(self) -> bool:
        """Return whether every started call has ended."""
        return self._idle.is_set()

    def start(
        self,
        name: str,
        call: Callable[[], Any],
        rest: Callable[[], Tail] | None = None,
    ) -> Work:
        """Queue a call and return its handle; `rest` tells what is left after it."""
        self.check()
        work = Work(name, self)
        with self._lock:
            self._pending += 1
            self._idle.clear()
            self._busy(True)
        self._workers.give(lambda: self._run(work, call, rest))
        return work

    def _run(
        self, work: Work, call: Callable[[], Any], rest: Callable[[], Tail] | None
    ) -> None:
        work._run(call, rest)
        with self._lock:
            self._pending -= 1
            if not self._pending:
                self._busy(False)
                self._idle.set()

    def wait_idle(self) -> None:
        """Return when every started call has ended."""
        if not self._refusal:
            self._idle.wait()

    def check(self) -> None:
        """Raise in a child that was forked: the thread is its parent's."""
        if self._refusal:
            raise CommunicatorBroken(self._refusal)

    def forget(self) -> None:
        """Be of no use in a forked child, which has no such thread."""
        self._refusal = (
            f"started calls belong to the process that pid {os.getpid()} was forked "
            "from; wait for them there, or start processes with spawn"
        )

    def stop(self) -> None:
        """End the thread after the calls that were started."""
        if not self._refusal:
            self._workers.stop(None)
