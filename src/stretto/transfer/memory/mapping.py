"""Files in memory that have no name: made, passed as descriptors, and mapped.

The kernel frees them when the last process that maps them ends, however it ends.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stretto.errors import SharedMemoryError

__all__ = ["Shared", "open_file", "word_at"]

_POPULATE_WRITE = 23


class Shared:
    """A file mapped here: its own, or a peer's by its descriptor."""

    def __init__(
        self, nbytes: int, fd: int | None = None, *, is_file: bool = False
    ) -> None:
        """Make one, or map one; the descriptor is ours from then on."""
        self.fd = -1
        try:
            self.fd = os.memfd_create("stretto", os.MFD_CLOEXEC) if fd is None else fd
            if fd is None:
                os.ftruncate(self.fd, nbytes)
            elif os.fstat(self.fd).st_size < nbytes:
                raise SharedMemoryError(
                    f"shared memory of {os.fstat(self.fd).st_size} bytes; its owner "
                    f"said {nbytes}"
                )
            self._map = mmap.mmap(self.fd, nbytes)
        except (OSError, ValueError, AttributeError) as e:
            self.close()
            raise SharedMemoryError(
                f"shared memory of {nbytes} bytes: {e}; want Linux, that much memory, "
                "and room for a descriptor (`ulimit -n`)"
            ) from e
        except SharedMemoryError:
            self.close()
            raise
        self.nbytes = nbytes
        self.array: NDArray[np.uint8] = np.frombuffer(self._map, np.uint8)
        self.address = int(self.array.ctypes.data)
        self._is_file = is_file

    def prefault(self) -> None:
        """Give it its pages now, so that no transfer pays for them."""
        libc = ctypes.CDLL(None, use_errno=True)
        libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        libc.madvise(self.address, self.nbytes, _POPULATE_WRITE)

    def flush(self) -> None:
        """Write a file's pages to its disk."""
        self._map.flush()

    def close(self) -> None:
        """Close the descriptor; who refers to the memory keeps it mapped."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def open_file(where: Path, nbytes: int) -> Shared:
    """Return a file's bytes as memory; it grows to that size."""
    try:
        number = os.open(where, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if os.fstat(number).st_size < nbytes:
            os.ftruncate(number, nbytes)
    except OSError as e:
        raise SharedMemoryError(f"{where}: {e.strerror}") from e
    return Shared(nbytes, number, is_file=True)


def word_at(address: int) -> NDArray[np.int64]:
    """Return the word at an address, as an array of one."""
    return np.asarray(memoryview((ctypes.c_int64 * 1).from_address(address)))
