"""The one layer of shared memory: files without a name, mapped where we want them.

Memory that processes share is a file without a name (a memfd, or a temporary file
unlinked at once), handed to others as a descriptor: so nobody opens it who was not
given it, and no crash can leak it. When the last process that maps it ends, however it
ends, the kernel frees it. A file never shrinks, whoever has it: who maps it would be
killed. Files that have a name are open to their owner only.

Descriptors are closed as soon as nothing more is to be given away: mappings need none.
(Python's own `mmap` would keep one for each; here the C library maps.)
"""

from __future__ import annotations

import ctypes
import errno
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
    "Shared",
    "Span",
    "bytes_at",
    "create_file",
    "give_back",
    "held",
    "huge_pages",
    "keep_room",
    "kind_of_file",
    "memory_bytes",
    "open_file",
    "prefault",
    "require_shared_memory",
    "word_at",
]

PAGE = mmap.PAGESIZE
_LINUX = sys.platform == "linux"
_BOTH = 1 | 2
"""To be read and written."""
_MAP_FIXED = 0x10
_MAP_NORESERVE = 0x4000 if _LINUX else 0x40
_MADV_POPULATE_WRITE = 23
_MADV_HUGEPAGE = 14
_MADV_REMOVE = 9
_MS_SYNC = 4
_FULL = errno.ENOMEM, errno.EFAULT
"""What populating says when there is no memory: who wrote there would be killed."""
_FAILED = ctypes.c_void_p(-1).value
_ADVICE = (
    "want that much: look at `ulimit -f` for files, `ulimit -n` for descriptors, "
    "`ulimit -v` for addresses, and at the container's memory"
)


@functools.cache
def _libc() -> Any:
    """Return the C library, with the calls that Python's mmap cannot make."""
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
    libc.madvise.argtypes = libc.msync.argtypes = [address, size, number]
    libc.mincore.argtypes = [address, size, address]
    return libc


def require_shared_memory() -> None:
    """Raise where processes cannot share memory in the ways below."""
    _libc()


def kind_of_file() -> str:
    """Return how shared memory is made here, for `doctor`."""
    if hasattr(os, "memfd_create"):
        return "memfd"
    return "unlinked file" if os.name == "posix" else "none: needs a POSIX system"


# Files.


def create_file(nbytes: int, name: str = "stretto") -> int:
    """Return the descriptor of a new file of zeros, which may grow and never shrinks.

    `name` is what the kernel lists it as: nobody can open it by that.
    """
    fd = -1
    try:
        if hasattr(os, "memfd_create"):
            fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            _seal(fd)
        else:
            shm = Path("/dev/shm")
            with tempfile.TemporaryFile(dir=shm if shm.is_dir() else None) as file:
                fd = os.dup(file.fileno())
        os.ftruncate(fd, nbytes)
    except OSError as e:
        _close(fd)
        raise _no_memory("a shared file", nbytes, e) from e
    return fd


def open_file(path: Path, nbytes: int = 0, *, is_new: bool = False) -> int:
    """Return the descriptor of a file with a name, of at least so many bytes.

    It is for its owner only where it is made here; `is_new` empties one that is there.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | (os.O_TRUNC if is_new else 0)
    fd = -1
    try:
        fd = os.open(path, flags, 0o600)
        if os.fstat(fd).st_size < nbytes:
            keep_room(fd, 0, nbytes)
    except OSError as e:
        _close(fd)
        raise _no_memory(str(path), nbytes, e) from e
    return fd


def keep_room(fd: int, offset: int, nbytes: int) -> None:
    """Have a file with a name grow to that, and its file system keep room for it.

    Where it has none, whoever wrote there later would be killed: this is an OSError.
    """
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(fd, offset, nbytes)
    else:
        os.ftruncate(fd, max(os.fstat(fd).st_size, offset + nbytes))


def _seal(fd: int) -> None:
    import fcntl  # where there are no memfds there may be none

    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)


def _close(fd: int) -> None:
    if fd >= 0:
        os.close(fd)


def _no_memory(what: str, nbytes: int, error: OSError) -> SharedMemoryError:
    return SharedMemoryError(f"{what} of {nbytes} bytes: {error.strerror}; {_ADVICE}")


# Addresses.


def _mmap(
    address: int, nbytes: int, protection: int, flags: int, fd: int, offset: int = 0
) -> int:
    got = _libc().mmap(address or None, nbytes, protection, flags, fd, offset)
    if got in (None, _FAILED):
        code = ctypes.get_errno()
        raise _no_memory("a mapping", nbytes, OSError(code, os.strerror(code)))
    return int(got)


def _munmap(address: int, nbytes: int) -> None:
    _libc().munmap(address, nbytes)


def _unmapped_with(owner: object, address: int, nbytes: int) -> None:
    """Unmap when an owner dies; not as the process ends: some thread may still read."""
    weakref.finalize(owner, _munmap, address, nbytes).atexit = False


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

    def __init__(self, fd: int, nbytes: int, offset: int = 0) -> None:
        """Map so many bytes of it, readable and writable; `fd` is the caller's."""
        self.nbytes = nbytes
        self.address = _mmap(0, nbytes, _BOTH, mmap.MAP_SHARED, fd, offset)
        _unmapped_with(self, self.address, nbytes)

    def replace(self, fd: int) -> None:
        """Map another file of the same size there: who reads here reads that one."""
        _mmap(self.address, self.nbytes, _BOTH, mmap.MAP_SHARED | _MAP_FIXED, fd)

    @property
    def array(self) -> NDArray[np.uint8]:
        """Return its bytes, which keep it mapped."""
        return np.asarray(Span(self.address, self.nbytes, self))

    def words(self, offset: int, count: int) -> NDArray[np.int64]:
        """Return 64-bit words of the mapping; they keep it mapped."""
        assert offset % 8 == 0
        assert offset + 8 * count <= self.nbytes
        span = Span(self.address + offset, 8 * count, self)
        return np.asarray(span).view(np.int64)

    def flush(self) -> None:
        """Write a file's pages to its disk."""
        _libc().msync(self.address, self.nbytes, _MS_SYNC)


class Shared(Mapping):
    """A file that is mapped here, with its descriptor while others may be given it."""

    def __init__(self, nbytes: int, fd: int | None = None) -> None:
        """Make one, or map one; the descriptor is ours from then on."""
        self.fd = create_file(nbytes) if fd is None else fd
        try:
            if (size := os.fstat(self.fd).st_size) < nbytes:
                raise SharedMemoryError(
                    f"shared memory of {size} bytes; its owner said {nbytes}"
                )
            super().__init__(self.fd, nbytes)
        except BaseException:
            self.close()
            raise

    @classmethod
    def of_peer(cls, nbytes: int, fd: int) -> Shared:
        """Map what a peer has made, and close its descriptor: nobody is given it."""
        made = cls(nbytes, fd)
        made.close()
        return made

    def close(self) -> None:
        """Close the descriptor; who refers to the memory keeps it mapped."""
        fd, self.fd = self.fd, -1
        _close(fd)


class Reservation:
    """A range of addresses, filled with files from its start on.

    There is none until the first file comes: most never have one. Every rank fills its
    reservation alike, so one distance leads from any byte of one rank's memory to the
    same byte of another's, however often the memory has grown.
    """

    def __init__(self, nbytes: int, least: int = 0) -> None:
        """Say how many addresses; fewer will do where limits leave no more."""
        self.nbytes, self._least = nbytes, least or nbytes
        self.address = self.used = 0

    def _reserve(self) -> None:
        """Reserve the addresses; no memory is used."""
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANON | _MAP_NORESERVE
        while not self.address:
            try:
                self.address = _mmap(0, self.nbytes, 0, flags, -1)
            except SharedMemoryError:
                if self.nbytes <= self._least:
                    raise
                self.nbytes = max(self.nbytes // 4, self._least)
        _unmapped_with(self, self.address, self.nbytes)

    def check_room(self, nbytes: int) -> None:
        """Raise when a file of so many bytes does not fit after those before it."""
        if not self.address:
            self._reserve()
        if self.used + nbytes > self.nbytes:
            raise SharedMemoryError(
                f"registered memory: {self.used + nbytes} bytes asked for in all, want "
                f"at most {self.nbytes} a communicator; free some, or use two"
            )

    def append(self, fd: int, nbytes: int) -> None:
        """Map a file after those before it."""
        self.check_room(nbytes)
        self.replace(fd, self.used, nbytes)
        self.used += nbytes

    def replace(self, fd: int, offset: int, nbytes: int) -> None:
        """Map a file there, in place of another."""
        flags = mmap.MAP_SHARED | _MAP_FIXED
        _mmap(self.address + offset, nbytes, _BOTH, flags, fd)


class Nowhere:
    """What another host has: at no address, and of no size."""

    address = used = 0

    def check_room(self, nbytes: int) -> None:
        """Have room for everything."""

    def append(self, fd: int, nbytes: int) -> None:
        """Map nothing."""


def bytes_at(address: int, nbytes: int) -> NDArray[np.uint8]:
    """Return memory as an array of bytes, which keeps nothing alive."""
    return np.asarray(memoryview((ctypes.c_uint8 * nbytes).from_address(address)))


def word_at(address: int) -> NDArray[np.int64]:
    """Return the word at an address, as an array of one."""
    return np.asarray(memoryview((ctypes.c_int64 * 1).from_address(address)))


# Pages.


def prefault(address: int, nbytes: int) -> None:
    """Give a shared range its pages now, so that no call pays for a fault.

    SharedMemoryError: there is no memory for them.
    """
    if nbytes <= 0:
        return
    start = address // PAGE * PAGE
    length = -(-(address + nbytes - start) // PAGE) * PAGE
    libc = _libc()
    if _LINUX and huge_pages() not in ("", "never"):
        libc.madvise(start, length, _MADV_HUGEPAGE)
    if _LINUX:
        if libc.madvise(start, length, _MADV_POPULATE_WRITE) == 0:
            return
        if (code := ctypes.get_errno()) in _FULL:
            raise _no_memory("pages", nbytes, OSError(code, os.strerror(code)))
    # Older kernels: reading one byte a page maps it, and changes nothing of a peer's.
    np.asarray(Span(start, length))[::PAGE].sum()


def give_back(address: int, nbytes: int) -> None:
    """Give the whole pages of a shared range back: all who map it read zeros there.

    They get pages again where they write, or by `prefault`.
    """
    start = -(-address // PAGE) * PAGE
    length = (address + nbytes) // PAGE * PAGE - start
    if _LINUX and length > 0:  # elsewhere they stay, and that is all
        _libc().madvise(start, length, _MADV_REMOVE)


def held(address: int, nbytes: int) -> int:
    """Return how many bytes of a shared range are memory by now, in whole pages."""
    start = address // PAGE * PAGE
    pages = np.zeros(-(-(address + nbytes - start) // PAGE), np.uint8)
    _libc().mincore(start, pages.size * PAGE, pages.ctypes.data)
    return int((pages & 1).sum()) * PAGE


@functools.cache
def memory_bytes() -> int:
    """Return how much memory this machine has."""
    return os.sysconf("SC_PHYS_PAGES") * PAGE


@functools.cache
def huge_pages() -> str:
    """Return the kernel's policy for huge pages of shared memory, or nothing."""
    try:
        path = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
        words = path.read_text(encoding="ascii")
    except OSError:
        return ""
    return words.partition("[")[2].partition("]")[0]
