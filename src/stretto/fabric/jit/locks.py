"""A lock in a word of memory, for compiled code and for Python: held only shortly."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from stretto.fabric.jit.atomics import compiled, pause, store_release, take
from stretto.fabric.jit.libc import sched_yield


@compiled("void(int64)")
def enter(lock: int) -> None:
    """Wait until a lock is ours. The interpreter's lock is not kept meanwhile."""
    spins = 0
    while not take(lock, 1):
        spins += 1
        if spins & 63 == 0:
            sched_yield()
        pause()


@compiled("void(int64)")
def leave(lock: int) -> None:
    """Let a lock go."""
    store_release(lock, 0)


@contextlib.contextmanager
def held(lock: int) -> Iterator[None]:
    """Hold a lock."""
    enter(lock)
    try:
        yield
    finally:
        leave(lock)
