"""Signals' handlers wait while others' code makes what must not be left half made.

A handler may raise between any two lines, also in the midst of Numba's and LLVM's
objects, whose destructors then complain, or worse. Handlers run in the main thread
alone, so nothing is done in another.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

# Python's own are wrapped for the sake of enums, which takes fifty times as long.
_get: Any = getattr(signal.getsignal, "__wrapped__", signal.getsignal)
_set: Any = getattr(signal.signal, "__wrapped__", signal.signal)
_NUMBERS = sorted(map(int, signal.valid_signals()))


@contextlib.contextmanager
def held_back() -> Iterator[None]:
    """Run no handler of a signal in this block; those that came run after it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: dict[int, None] = {}

    def note(number: int, frame: FrameType | None) -> None:
        came[number] = None

    found = ((number, _get(number)) for number in _NUMBERS)
    handlers = {number: handler for number, handler in found if callable(handler)}
    try:
        for number in handlers:
            _set(number, note)
        yield
    finally:
        for number, handler in handlers.items():
            if _get(number) is note:
                _set(number, handler)
        for number in came:
            signal.raise_signal(number)
