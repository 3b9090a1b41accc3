"""The calls of a hop for compiled code: they take the interpreter's lock."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from stretto.hop import Calls

__all__ = ["Entries"]

_CALL = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)


class Entries:
    """Each takes the context, and the address of its arguments, or a number."""

    def __init__(self, hop: Any) -> None:
        self._hop = hop
        self._functions = [
            _CALL(self._safe(function))
            for function in (
                self._put, self._signal, self._progress, self._wait, self._busy
            )
        ]  # fmt: skip
        at = [ctypes.cast(f, ctypes.c_void_p).value or 0 for f in self._functions]
        self.calls = Calls(1, *at)  # nobody reads the context; 0 is no hop at all

    def _safe(self, function: Callable[[int], int]) -> Callable[[int, int], int]:
        """Return a function that raises nothing: nobody could catch it."""

        def called(context: int, argument: int) -> int:
            try:
                return int(function(argument))
            except Exception as e:
                self._hop.end_all(e)
                return 0

        return called

    def _put(self, at: int) -> int:
        return int(self._hop.put(*(ctypes.c_int64 * 5).from_address(at)))

    def _signal(self, at: int) -> int:
        peer, lane, offset, value, side, *words = (ctypes.c_int64 * 8).from_address(at)
        return int(self._hop.signal(peer, lane, offset, value, side, words))

    def _progress(self, at: int) -> int:
        return int(self._hop.progress())

    def _wait(self, microseconds: int) -> int:
        return int(self._hop.wait(microseconds))

    def _busy(self, which: int) -> int:
        return int(self._hop.busy(which))
