"""Shared memory that no crash can leak: anonymous files, mapped where we want them.

Memory is a file without a name (a memfd, or a temporary file unlinked at once), handed
to other processes as a file descriptor. When the last process that maps it ends,
however it ends, the kernel frees it.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import sys
import tempfile
import weakref
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.errors import SharedMemoryError

__all__ = [
    "PAGE",
    "Mapping",
    "Nowhere",
    "Reservation",
    "Span",
    "create_file",
    "huge_pages",
    "kind_of_file",
    "prefault",
    "require_shared_memory",
]

PAGE = mmap.PAGESIZE
_LINUX = sys.platform == "linux"
_MAP_FIXED = 0x10
_MAP_NORESERVE = 0x4000 if _LINUX else 0x40
_MADV_POPULATE_WRITE = 23
_MADV_HUGEPAGE = 14
_FAILED = ctypes.c_void_p(-1).value


@functools.cache
def _libc() -> Any:
    """Return the C library, with the three calls that Python's mmap cannot make."""
    if os.name != "posix":
        raise SharedMemoryError(
            f"no shared memory on {sys.platform}: executor 'cpu' needs a POSIX mmap; "
            "use executor 'sim' here, or run under Linux (WSL is enough)"
        )
    libc = ctypes.CDLL(None, use_errno=True)
    address, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    libc.mmap.restype = address
    libc.mmap.argtypes = [address, size, number, number, number, ctypes.c_int64]
    libc.munmap.argtypes = [address, size]
    libc.madvise.argtypes = [address, size, number]
    return libc


def require_shared_memory() -> None:
    """Raise where processes cannot share memory in the ways below."""
    _libc()


def kind_of_file() -> str:
    """Return how shared memory is made here, for `doctor`."""
    if hasattr(os, "memfd_create"):
        return "memfd"
    return "unlinked file" if os.name == "posix" else "none: needs a POSIX system"


def create_file(nbytes: int) -> int:
    """Return the descriptor of a new file of zeros that has no name."""
    fd = -1
    try:
        if hasattr(os, "memfd_create"):
            fd = os.memfd_create("stretto", os.MFD_CLOEXEC)
        else:
            shm = Path("/dev/shm")
            with tempfile.TemporaryFile(dir=shm if shm.is_dir() else None) as file:
                fd = os.dup(file.fileno())
        os.ftruncate(fd, nbytes)
    except OSError as e:
        if fd >= 0:
            os.close(fd)
        raise SharedMemoryError(
            f"a shared file of {nbytes} bytes: {e.strerror}; want that much: look at "
            "`ulimit -f` for files, `ulimit -n` for descriptors, and at the "
            "container's memory"
        ) from e
    return fd


def _mmap(address: int, nbytes: int, protection: int, flags: int, fd: int) -> int:
    got = _libc().mmap(address or None, nbytes, protection, flags, fd, 0)
    if got in (None, _FAILED):
        code = ctypes.get_errno()
        raise SharedMemoryError(
            f"mmap of {nbytes} bytes: {os.strerror(code)}; want that much memory or "
            "address space: look at `ulimit -v` and the container's limits"
        )
    return int(got)


def _munmap(address: int, nbytes: int) -> None:
    _libc().munmap(address, nbytes)


class Span:
    """Bytes at an address, as NumPy arrays see them; keeps alive what owns them."""

    def __init__(self, address: int, nbytes: int, owner: object = None) -> None:
        """Describe them as NumPy wants."""
        self._owner = owner
        self.__array_interface__ = {
            "version": 3,
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (address, False),
        }


class Mapping:
    """A shared file in this process's address space, until nobody refers to it."""

    def __init__(self, fd: int, nbytes: int) -> None:
        """Map all of the file, readable and writable."""
        both = mmap.PROT_READ | mmap.PROT_WRITE
        self.nbytes = nbytes
        self.address = _mmap(0, nbytes, both, mmap.MAP_SHARED, fd)
        self._end = weakref.finalize(self, _munmap, self.address, nbytes)

    def words(self, offset: int, count: int) -> NDArray[np.int64]:
        """Return 64-bit words of the mapping; they keep it mapped."""
        assert offset % 8 == 0
        assert offset + 8 * count <= self.nbytes
        span = Span(self.address + offset, 8 * count, self)
        return np.asarray(span).view(np.int64)


class Reservation:
    """A range of addresses, filled with files from its start on.

    Every rank fills its reservation alike, so one distance leads from any byte of one
    rank's memory to the same byte of another's, however often the memory has grown.
    """

    def __init__(self, nbytes: int) -> None:
        """Reserve addresses; no memory is used."""
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANON | _MAP_NORESERVE
        self.nbytes = nbytes
        self.address = _mmap(0, nbytes, 0, flags, -1)
        self.used = 0
        self._end = weakref.finalize(self, _munmap, self.address, nbytes)

    def check_room(self, nbytes: int) -> None:
        """Raise when a file of so many bytes does not fit after those before it."""
        if self.used + nbytes > self.nbytes:
            raise SharedMemoryError(
                f"registered memory: {self.used + nbytes} bytes asked for in all, want "
                f"at most {self.nbytes} a communicator; free some, or use two"
            )

    def append(self, fd: int, nbytes: int) -> None:
        """Map a file after those before it."""
        self.check_room(nbytes)
        both, flags = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED | _MAP_FIXED
        _mmap(self.address + self.used, nbytes, both, flags, fd)
        self.used += nbytes


class Nowhere:
    """What another host has: at no address, and of no size."""

    address = used = 0

    def check_room(self, nbytes: int) -> None:
        """Have room for everything."""

    def append(self, fd: int, nbytes: int) -> None:
        """Map nothing."""


def prefault(address: int, nbytes: int) -> None:
    """Give a shared range its pages now, so that no call pays for a fault."""
    if nbytes <= 0:
        return
    start = address // PAGE * PAGE
    length = -(-(address + nbytes - start) // PAGE) * PAGE
    libc = _libc()
    if _LINUX and huge_pages() not in ("", "never"):
        libc.madvise(start, length, _MADV_HUGEPAGE)
    if _LINUX and libc.madvise(start, length, _MADV_POPULATE_WRITE) == 0:
        return
    # Older kernels: reading one byte a page maps it, and changes nothing of a peer's.
    np.asarray(Span(start, length))[::PAGE].sum()


@functools.cache
def huge_pages() -> str:
    """Return the kernel's policy for huge pages of shared memory, or nothing."""
    try:
        path = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
        words = path.read_text(encoding="ascii")
    except OSError:
        return ""
    return words.partition("[")[2].partition("]")[0]
