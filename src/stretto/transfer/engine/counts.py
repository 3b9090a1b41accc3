"""Notifications: names that peers send, counted until somebody takes them."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Generator
from typing import Any

from stretto.errors import EngineLost, TransferCancelled, TransferTimeout
from stretto.fabric.patience import check_timeout
from stretto.transfer.engine.loop import LinkLoop
from stretto.transfer.links.notices import check_count, tag_hash
from stretto.transfer.ways.pending import Pending

__all__ = ["Counts", "Notified"]

_MOST_NAMES = 1 << 16


class Counts:
    """How often each name has come and was not taken, and who waits for which."""

    def __init__(self) -> None:
        self._counts: dict[bytes, int] = {}
        self.names = self._counts.keys()
        """The names that have come and were not taken."""
        self._waiting: dict[bytes, deque[tuple[int, Pending[None]]]] = {}
        self._lock = threading.Lock()
        self._over: EngineLost | None = None
        """Why nothing comes any more."""

    def end(self, why: EngineLost) -> None:
        """Have nobody wait for what will not come; what has come can be taken."""
        with self._lock:
            self._over = why
            waiting = [one for some in self._waiting.values() for _, one in some]
            self._waiting.clear()
        for pending in waiting:
            pending.fail(why)

    def add(self, tag: bytes, count: int) -> str:
        """Count a name; return why it cannot be kept, or nothing."""
        ready = []
        with self._lock:
            if tag not in self._counts and len(self._counts) >= _MOST_NAMES:
                return f"{_MOST_NAMES} notifications wait that nobody takes"
            have = self._counts.get(tag, 0) + count
            waiting = self._waiting.get(tag)
            while waiting and (waiting[0][1].done() or have >= waiting[0][0]):
                want, pending = waiting.popleft()
                if not pending.done():
                    have -= want
                    ready.append((want, pending))
            if waiting is not None and not waiting:
                del self._waiting[tag]
            self._keep(tag, have)
        for want, pending in ready:
            if not pending.finish(None):  # taken back meanwhile
                self.add(tag, want)
        return ""

    def _keep(self, tag: bytes, have: int) -> None:
        if have:
            self._counts[tag] = have
        else:
            self._counts.pop(tag, None)

    def take(self, tag: bytes, count: int) -> bool:
        """Take a name so many times, if it has come so often."""
        if tag not in self._counts:
            return False
        with self._lock:
            have = self._counts.get(tag, 0)
            if have < count:
                return False
            self._keep(tag, have - count)
        return True

    def await_(self, tag: bytes, count: int, pending: Pending[None]) -> None:
        """Have somebody told when a name has come so often; in the order of asking."""
        with self._lock:
            have, over = self._counts.get(tag, 0), self._over
            if have >= count:
                self._keep(tag, have - count)
            elif over is None:
                waiting = self._waiting.setdefault(tag, deque())
                waiting.append((count, pending))
                return
        if have >= count:
            pending.finish(None)
        elif over is not None:
            pending.fail(over)

    def waiting_for(self, tag: bytes) -> int:
        """Return how often a name has come and was not taken."""
        return self._counts.get(tag, 0)


class Notified:
    """A name to wait for, so many times: each `wait`, and each `await`, takes them."""

    def __init__(self, loop: LinkLoop, counts: Counts, tag: bytes, count: int) -> None:
        self._hash = tag_hash(tag)
        check_count(count, tag)
        self._loop, self._counts = loop, counts
        self.tag, self.count = tag, count
        self._known = counts.names
        self._is_one = count == 1

    def done(self) -> bool:
        """Return whether so many have come."""
        self._loop.check()
        self._loop.drain()
        return self._counts.waiting_for(self.tag) >= self.count

    def wait(self, timeout: float | None = None) -> None:
        """Return when so many have come, and take them."""
        if timeout is not None:
            check_timeout(timeout, f"notification {self.tag!r}")
        if self._is_one and self.tag not in self._known:
            loop = self._loop
            if loop.glance(loop.look_at, self._hash) == 1:
                return
        self._wait(timeout)

    def _wait(self, timeout: float | None) -> None:
        """Wait for what has not come at once."""
        loop, counts = self._loop, self._counts
        loop.check()
        until = None if timeout is None else time.monotonic() + timeout
        if counts.take(self.tag, self.count):
            return
        if self._is_one and loop.spin_for(self._hash, self.tag, counts, until):
            return
        left = None if until is None else max(0.0, until - time.monotonic())
        self.pending().wait(left)

    def pending(self) -> Pending[None]:
        """Return something under way that ends when so many have come."""
        self._loop.check()
        made = _Waiting(self._loop, f"notification {self.tag!r} x {self.count}")
        self._counts.await_(self.tag, self.count, made)
        return made

    def __await__(self) -> Generator[Any, None, None]:
        """Wait in an event loop."""
        return self.pending().__await__()


class _Waiting(Pending[None]):
    def wait(self, timeout: float | None = None) -> None:
        """Take nothing when it is late."""
        try:
            super().wait(timeout)
        except TransferTimeout:
            if self.fail(TransferCancelled(f"{self.what}: nobody waits any more")):
                raise
            super().wait(0)
