"""Kernels on this process's GPU: loaded once, whichever of its sessions use them.

Loading may wait for all that runs on the GPU, and what runs there may wait for a peer.
So a session that finds a kernel here has nothing to wait for: of two ranks that both
send before they receive, each finds the receiving kernel when its own send is under way
(a transfer loads both).
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeAlias

from stretto.executors.cuda.codegen.abi import Kernel
from stretto.executors.cuda.device.driver import Device, api, attempt
from stretto.executors.cuda.launching.launch import Loaded, load

__all__ = ["Kernels"]

_Shelf: TypeAlias = dict[tuple[int, str], list[Any]]
_shelves: weakref.WeakKeyDictionary[Any, _Shelf] = weakref.WeakKeyDictionary()
"""Kernels and how many sessions use them, by GPU and text; a shelf for each driver."""
_turn = threading.RLock()
"""Whoever loads has it: the others then find what was loaded."""


class Kernels:
    """The kernels of one session."""

    def __init__(
        self, device: Device, quiet: Callable[[], AbstractContextManager[None]]
    ) -> None:
        """`quiet` holds while nothing runs that loading might wait for."""
        self._device = device
        self._quiet = quiet
        self._mine: dict[str, Loaded] = {}

    @property
    def turn(self) -> AbstractContextManager[bool]:
        """Hold while several are loaded that must all be there before one runs."""
        return _turn

    def load(self, kernel: Kernel) -> Loaded:
        """Return a kernel, compiled and loaded."""
        found = self._mine.get(kernel.digest)
        if found is None:
            found = self._mine[kernel.digest] = self._take(kernel)
        if found.kernel != kernel:
            same = found.module, found.function
            found = Loaded(*same, kernel, waits=found.waits)
        return found

    def _take(self, kernel: Kernel) -> Loaded:
        from stretto.executors.cuda.codegen.compile import (
            compile_kernel,  # it needs NVRTC
        )

        key = self._device.ordinal, kernel.digest
        with _turn:
            shelf = _shelves.setdefault(api(), {})
            entry = shelf.get(key)
            if entry is None:
                image = compile_kernel(kernel, arch=self._device.arch)
                with self._quiet():
                    entry = shelf[key] = [load(self._device, kernel, image), 0]
            entry[1] += 1
            found: Loaded = entry[0]
            return found

    def close(self) -> None:
        """Unload what no other session uses."""
        with _turn:
            shelf = _shelves.setdefault(api(), {})
            for digest in self._mine:
                key = self._device.ordinal, digest
                entry = shelf[key]
                entry[1] -= 1
                if not entry[1]:
                    del shelf[key]
                    attempt("cuModuleUnload", entry[0].module)
            self._mine.clear()
