"""What is packed once for a call, and found again: one cache for every kind of launch.

Nothing that changes between calls is in a kernel's parameters but addresses and a few
words, which are the key here. Epochs live on the device: a captured launch may be
replayed for ever.
"""

from __future__ import annotations

import ctypes
import zlib
from collections.abc import Callable
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

__all__ = ["KEPT", "Block", "Key", "Parameters", "mixed"]

KEPT = 512
"""Keys whose parameters are kept, of each launch and set of flags."""
PADDING = 64
"""Bytes after the parameters: an empty table is a word in C."""

Key: TypeAlias = tuple[int, ...]
"""Where input and output lie, then the words that a call adds."""
T = TypeVar("T")


class Block(int):
    """A kernel's parameters in memory: the address of its argument array."""

    words: memoryview
    """The parameters, as words of 64 bits."""
    _array: Any

    @classmethod
    def of(cls, packed: NDArray[np.uint8]) -> Block:
        """Return a copy of packed parameters."""
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
        oldest = self.kept.pop(next(iter(self.kept))) if full else None
        found = self.kept[key] = self._make(key, oldest)
        return found

    def forget(self) -> None:
        """Pack all anew."""
        self.kept.clear()


def mixed(fingerprint: int, also: tuple[int | None, ...]) -> int:
    """Return a fingerprint that says more: a form, or where zero-copy arrays lie.

    Ranks whose arrays lie at different offsets then differ, and are told so.
    """
    text = repr((fingerprint, also)).encode()
    return zlib.crc32(text) or 1
