"""What carriers whose calls are compiled do alike: Python calls the same functions."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np

from stretto.fabric.hop.base import Calls
from stretto.fabric.hop.connections import Hop


class CompiledHop(Hop):
    """A hop whose calls are compiled: a module has them, and Python calls the same."""

    _engine: Any = None
    _at = 0

    def use(self, engine: ModuleType, context: int) -> None:
        """Use the functions of a module, which know this hop by an address."""
        self._engine, self._at = engine, context

    @property
    def calls(self) -> Calls:
        """Return the addresses of the compiled functions."""
        return Calls(self._at, *_addresses(self._engine))

    def do_put(
        self, peer: int, lane: int, source: int, offset: int, nbytes: int
    ) -> bool:
        """Begin a put."""
        given = np.array((peer, lane, source, offset, nbytes), np.int64)
        return bool(self._engine.put(self._at, int(given.ctypes.data)))

    def do_signal(
        self, peer: int, lane: int, offset: int, value: int, side: int,
        words: Sequence[int],
    ) -> bool:  # fmt: skip
        """Raise a peer's word."""
        given = np.array((peer, lane, offset, value, side, *words), np.int64)
        return bool(self._engine.signal(self._at, int(given.ctypes.data)))

    def do_progress(self) -> int:
        """Send and receive what can be."""
        return int(self._engine.progress(self._at, 0))

    def do_wait(self, microseconds: int) -> int:
        """Sleep until something comes, at most so long."""
        return int(self._engine.wait(self._at, microseconds))

    def do_busy(self, which: int) -> int:
        """Return whether something is to be read."""
        return int(self._engine.busy(self._at, which))


@functools.cache
def _addresses(engine: ModuleType) -> tuple[int, ...]:
    """Return where compiled calls begin.

    They are asked for once: that takes a lock of LLVM's, which a child that is forked
    meanwhile would find taken for ever.
    """
    from stretto.fabric.jit.atomics import entry

    some = engine.put, engine.signal, engine.progress, engine.wait, engine.busy
    return tuple(entry(function) for function in some)
