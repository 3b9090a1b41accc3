"""A launch's parameters, packed and kept by where its arrays lie."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

KEPT = 512
"""Keys whose parameters are kept, of each launch and set of flags."""
PADDING = 64
"""Bytes after the parameters: an empty table is a word in C."""

Key: TypeAlias = tuple[int, ...]
"""Where input and output lie, then the words that a call adds."""
T = TypeVar("T")


class Args(int):
    """A kernel's parameters in memory: the address of its argument array."""

    words: memoryview
    """The parameters, as words of 64 bits."""
    _array: Any

    @classmethod
    def of(cls, packed: NDArray[np.uint8]) -> Args:
        """Return a copy of packed parameters."""
        # A table that is empty here is one word for the driver, which copies it.
        padded = packed.tobytes() + bytes(PADDING)
        raw = (ctypes.c_uint8 * len(padded)).from_buffer_copy(padded)
        array = (ctypes.c_void_p * 1)(ctypes.addressof(raw))
        block = cls(ctypes.addressof(array))
        block.words, block._array = memoryview(raw).cast("B").cast("Q"), array
        return block


class Parameters(Generic[T]):
    """What was packed for each key, with one set of flags.

    A launch copies its parameters, so those of the key that was packed first may be
    written over when there are many: arrays may lie elsewhere in every call.
    """

    def __init__(self, make: Callable[[Key, T | None], T]) -> None:
        """`make` packs for a key, and may write over what it is given."""
        self._make = make
        self.kept: dict[Key, T] = {}

    def pack(self, key: Key) -> T:
        """Pack for a key that is not kept."""
        full = len(self.kept) >= KEPT
        # The driver has copied what was launched: its memory may be written over.
        oldest = self.kept.pop(next(iter(self.kept))) if full else None
        found = self.kept[key] = self._make(key, oldest)
        return found

    def forget(self) -> None:
        """Pack all anew."""
        self.kept.clear()
