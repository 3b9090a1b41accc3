"""Files in memory that have no name: made, passed as descriptors, and mapped.

The kernel frees them when the last process that maps them ends, however it ends.
Python's own `mmap` would keep a second descriptor of each: the C library maps them.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.errors import SharedMemoryError

__all__ = ["Shared", "open_file", "word_at"]

_POPULATE_WRITE = 23
_MS_SYNC = 4
_FAILED = ctypes.c_void_p(-1).value


@functools.cache
def _libc() -> Any:
    """Return the C library, with calls that take addresses."""
    libc = ctypes.CDLL(None, use_errno=True)
    at, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    libc.mmap.restype = at
    libc.mmap.argtypes = [at, size, number, number, number, ctypes.c_int64]
    libc.munmap.argtypes = [at, size]
    libc.msync.argtypes = libc.madvise.argtypes = [at, size, number]
    return libc


class _Mapped:
    """A file's bytes at an address, until nobody refers to them, or to this."""

    def __init__(self, number: int, nbytes: int) -> None:
        """Map a file; OSError: it cannot be."""
        self.nbytes = 0
        self._unmap = _libc().munmap
        both = mmap.PROT_READ | mmap.PROT_WRITE
        got = _libc().mmap(None, nbytes, both, mmap.MAP_SHARED, number, 0)
        if got in (None, _FAILED):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        self.address, self.nbytes = int(got), nbytes
        self.__array_interface__ = {
            "version": 3, "shape": (nbytes,), "typestr": "|u1", "data": (got, False),
        }  # fmt: skip

    def __del__(self) -> None:
        """Give the addresses back."""
        if self.nbytes:
            self._unmap(self.address, self.nbytes)


class Shared:
    """A file mapped here: its own, or a peer's by its descriptor."""

    def __init__(
        self, nbytes: int, fd: int | None = None, *, is_file: bool = False
    ) -> None:
        """Make one, or map one; the descriptor is ours from then on.

        That of a peer's memory is closed: what is mapped needs none.
        """
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
            mapped = _Mapped(self.fd, nbytes)
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
        self.array: NDArray[np.uint8] = np.asarray(mapped)
        self.address = mapped.address
        if fd is not None and not is_file:
            self.close()

    def prefault(self) -> None:
        """Give it its pages now, so that no transfer pays for them."""
        _libc().madvise(self.address, self.nbytes, _POPULATE_WRITE)

    def flush(self) -> None:
        """Write a file's pages to its disk."""
        _libc().msync(self.address, self.nbytes, _MS_SYNC)

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
