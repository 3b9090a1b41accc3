"""The calls of a hop for compiled code, where its methods are Python's.

They take the interpreter's lock. Who calls them must hold no lock that somebody spins
for who has the interpreter's: both would wait for ever.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from stretto.fabric.hop.base import Calls, PutCall, SignalCall

_CALL = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)


class Entries:
    """Each takes the context, and the address of its arguments, or a number."""

    def __init__(self, hop: Any) -> None:
        self._hop = hop
        self._functions = [
            _CALL(self._safe(function))
            for function in (
                self._put, self._signal, lambda _: hop.do_progress(), hop.do_wait,
                hop.do_busy,
            )
        ]  # fmt: skip
        at = [ctypes.cast(f, ctypes.c_void_p).value or 0 for f in self._functions]
        self.calls = Calls(1, *at)  # nobody reads the context; 0 is no hop at all

    def _safe(self, function: Callable[..., int]) -> Callable[[int, int], int]:
        """Return a function that raises nothing: nobody could catch it."""

        def called(context: int, argument: int) -> int:
            if not self._hop.is_usable:
                return 0
            try:
                return int(function(argument))
            except Exception as e:
                self._hop.end_all(f"{type(e).__name__}: {e}")
                return 0

        return called

    def _put(self, at: int) -> int:
        return int(self._hop.do_put(*(ctypes.c_int64 * PutCall.END).from_address(at)))

    def _signal(self, at: int) -> int:
        given = (ctypes.c_int64 * SignalCall.END).from_address(at)
        peer, lane, offset, value, side, *words = given
        return int(self._hop.do_signal(peer, lane, offset, value, side, words))
