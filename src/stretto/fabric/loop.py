"""The one loop: a thread that serves descriptors, times, and what others ask of it.

    loop.watch(descriptor, call)      call it whenever there is something to read
    loop.at(time, task)               call it then
    loop.call(task)                   call it soon: from any thread

It has a thread of its own (`start`), or who has it turns it himself (`step`). What is
called may watch and unwatch anything, itself included. When it raises, that ends what
it belongs to (`fault` is told, or it is unwatched and printed), and never the loop.
"""

from __future__ import annotations

import heapq
import itertools
import os
import selectors
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from stretto.errors import RendezvousError, is_interruption
from stretto.fabric.forks import forget_in_children

READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE

LONGEST_WAIT_S = 3600.0
"""How long one look at a descriptor may take; the kernel counts in 32 bits."""
_BEGINS_S = 15.0
"""Within so many seconds a thread begins, on however busy a machine."""
_FEW_TIMERS = 64
_RING = (1).to_bytes(8, sys.byteorder)
"""What an eventfd takes, and a pipe takes as well."""

Task = Callable[[], None]
Fault = Callable[[Exception], None]


def _nothing() -> None:
    """Do nothing."""


class HasNumber(Protocol):
    """A socket, or what stands for one."""

    def fileno(self) -> int:
        """Return its number."""


class Sends(HasNumber, Protocol):
    """A connection that keeps what cannot be sent yet."""

    @property
    def is_sending(self) -> bool:
        """Whether something waits to be sent."""


class Timer:
    """What is called at some time, unless it is cancelled before."""

    __slots__ = ("fault", "task", "when")

    def __init__(self, when: float, task: Task, fault: Fault | None) -> None:
        self.when, self.fault = when, fault
        self.task: Task | None = task

    def cancel(self) -> None:
        """Do not call it; of no effect once it was called."""
        self.task = None


class _Watched:
    """What is called when a descriptor stirs."""

    __slots__ = ("call", "fault")

    def __init__(self, call: Task, fault: Fault | None) -> None:
        self.call, self.fault = call, fault


class Loop:
    """See the module. Only `call`, `at`, `wake` and `stop` are for other threads."""

    def __init__(self, name: str = "stretto-loop") -> None:
        self.name = name
        self.on_fault: Fault = say_fault
        """Told of a fault that belongs to nothing else."""
        self.on_end: Task = _nothing
        """Called by its thread at the very end."""
        self.is_over = self._is_closed = False
        self._selector = selectors.DefaultSelector()
        self._woken, self._bell = _bell()
        self._served: dict[int, _Watched] = {}
        self._tasks: deque[tuple[Task, Fault | None]] = deque()
        self._timers: list[tuple[float, int, Timer]] = []
        self._most_timers = _FEW_TIMERS
        """From so many on, those that were cancelled are dropped first."""
        self._number = itertools.count()
        self._lock, self._waking = threading.Lock(), threading.RLock()
        self._thread: threading.Thread | None = None
        self.watch(self._woken, self._hear_bell)
        forget_in_children(self)

    # What is served.

    def watch(
        self, one: int | HasNumber, call: Task, *, fault: Fault | None = None,
        events: int = READ,
    ) -> None:  # fmt: skip
        """Call something whenever a descriptor has something (READ), or room (WRITE).

        What was to be called for it before is not called any more.
        """
        number = one if isinstance(one, int) else one.fileno()
        with suppress(KeyError):  # or of another, that was closed and has this number
            self._selector.unregister(number)
            del self._served[number]
        if events:
            watched = self._served[number] = _Watched(call, fault)
            self._selector.register(number, events, watched)

    def mind(self, one: Sends) -> None:
        """Also call when there is room, as long as something waits to be sent."""
        watched = self._served.get(number := one.fileno())
        if watched is not None:
            wanted = READ | WRITE if one.is_sending else READ
            if self._selector.get_key(number).events != wanted:
                self._selector.modify(number, wanted, watched)

    def unwatch(self, one: int | HasNumber) -> None:
        """Call nothing for a descriptor any more; before it is closed, if it was."""
        number = one if isinstance(one, int) else one.fileno()
        if self._served.pop(number, None) is not None:
            self._selector.unregister(number)

    def at(self, when: float, task: Task, fault: Fault | None = None) -> Timer:
        """Call something at a time of the monotonic clock."""
        timer = Timer(when, task, fault)
        with self._lock:
            if len(self._timers) >= self._most_timers:
                self._timers = [one for one in self._timers if one[2].task]
                heapq.heapify(self._timers)
                self._most_timers = max(_FEW_TIMERS, 2 * len(self._timers))
            heapq.heappush(self._timers, (when, next(self._number), timer))
            first = self._timers[0][2] is timer
        if first and not self.is_here:
            self.wake()
        return timer

    def call(self, task: Task, fault: Fault | None = None) -> None:
        """Call something soon, in the loop's thread."""
        self._tasks.append((task, fault))
        self.wake()

    def wake(self) -> None:
        """Have it look around."""
        with self._waking:  # else its number may be another file's by now
            if not self._is_closed:
                with suppress(BlockingIOError):  # it has been rung often enough
                    os.write(self._bell, _RING)

    def _hear_bell(self) -> None:
        with suppress(BlockingIOError, MemoryError):  # then it is heard again
            os.read(self._woken, 4096)

    @property
    def wake_fd(self) -> int:
        """Return the descriptor by which others wake it, another process included."""
        return self._bell

    @property
    def number(self) -> int:
        """Return a descriptor that is readable when something stirs, for pollers."""
        return self._selector.fileno()

    # Turning.

    def step(self, most_s: float | None = None) -> None:
        """Wait until something stirs, at most so long, and deal with it."""
        now = time.monotonic()
        wait = LONGEST_WAIT_S if most_s is None else min(most_s, LONGEST_WAIT_S)
        with self._lock:
            while self._timers and self._timers[0][2].task is None:
                heapq.heappop(self._timers)
            if self._timers:
                wait = min(wait, max(0.0, self._timers[0][0] - now))
        wait = self.before_sleep(now, 0.0 if self._tasks else wait)
        for key, _ in self._selector.select(wait):
            watched = self._served.get(key.fd)
            if watched is key.data:  # else it was unwatched in this very turn
                self._do(watched.call, watched.fault, key.fd)
        while self._tasks:
            self._do(*self._tasks.popleft())
        self.after_tasks()
        self._ring()

    def before_sleep(self, now: float, wait: float) -> float:
        """Return how long to sleep at most; it may sleep by other means before."""
        return wait

    def after_tasks(self) -> None:
        """Do what is to be done in every turn, before what is due."""

    def _ring(self) -> None:
        now = time.monotonic()
        while True:
            with self._lock:
                if not self._timers or self._timers[0][0] > now:
                    return
                _, _, timer = heapq.heappop(self._timers)
            task, timer.task = timer.task, None
            if task is not None:
                self._do(task, timer.fault)

    def _do(self, task: Task, fault: Fault | None, number: int = -1) -> None:
        try:
            task()
        except Exception as e:
            if is_interruption(e):
                raise
            if fault is None and number >= 0:
                self.unwatch(number)  # it would stir for ever
            try:
                (fault or self.on_fault)(e)
            except Exception as second:
                if is_interruption(second):
                    raise
                self.on_fault(second)

    # The thread.

    def fail(self, error: Exception) -> None:
        """Go on after a turn that failed by itself, and by nothing that was called."""
        self.on_fault(error)

    def start(
        self, until: Callable[[], bool] = lambda: False, last: Task = _nothing
    ) -> None:
        """Turn it in a thread of its own, until something is so, or `stop`.

        Then `last` gives back what was served, and the loop what it has.
        """
        self._thread = threading.Thread(
            target=self._run, args=(until, last), name=self.name, daemon=True
        )
        start_thread(self._thread)

    @property
    def is_here(self) -> bool:
        """Return whether this is its thread."""
        return threading.current_thread() is self._thread

    def _run(self, until: Callable[[], bool], last: Task) -> None:
        try:
            while not (self.is_over or until()):
                try:
                    self.step()
                except Exception as e:
                    if is_interruption(e):
                        raise
                    self.fail(e)
        finally:
            self.is_over = True
            try:
                last()
            finally:
                self.close()
                self.on_end()

    def stop(self) -> None:
        """Have the thread end after this turn."""
        self.is_over = True
        self.wake()

    def join(self, timeout_s: float) -> bool:
        """Wait until the thread has ended, at most so long; return whether it has."""
        if self._thread is None or self.is_here:
            return False
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def close(self) -> None:
        """Give back what it holds; who turns it himself, when he is done."""
        with self._waking:
            if not self._is_closed:
                self.is_over = self._is_closed = True
                self._served.clear()
                self._selector.close()
                os.close(self._woken)
                if self._bell != self._woken:
                    os.close(self._bell)

    def forget(self) -> None:
        """Be of no use in a child that this process forks: it has no thread there."""
        self._lock, self._waking = threading.Lock(), threading.RLock()
        self.on_end = _nothing
        self.close()


def _bell() -> tuple[int, int]:
    """Return what turns readable, and where to write for that."""
    if hasattr(os, "eventfd"):
        number = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        return number, number
    woken, bell = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(bell, False)
    return woken, bell


def say_fault(error: Exception) -> None:
    """Print a fault as threads do."""
    threading.excepthook(threading.ExceptHookArgs([type(error), error, None, None]))


class _Begun(threading.Event):
    """That a thread has begun, which Python awaits for ever.

    One that the system starts, and that then finds no memory, ends without a word.
    """

    def wait(self, timeout: float | None = None) -> bool:
        """Wait, but not for ever."""
        if not super().wait(_BEGINS_S if timeout is None else timeout):
            raise MemoryError("it was started, and has not begun")
        return True


def start_thread(thread: threading.Thread) -> None:
    """Start a thread; without room for one, RendezvousError says what to look at."""
    thread._started = _Begun()  # type: ignore[attr-defined]
    try:
        thread.start()
    except (RuntimeError, MemoryError) as e:
        raise RendezvousError(
            f"pid {os.getpid()} cannot start a thread ({e}); want room for one: look "
            "at `ulimit -v`, `ulimit -u` and the container's limits"
        ) from e
