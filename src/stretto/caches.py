"""Files that may be lost: ours alone, checksummed, deleted and made anew at any fault.

In: bytes under a name. Out: the same bytes, or None. Never: an error, or bytes that
somebody else could have written.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

__all__ = ["alone", "discard", "folder", "load", "once", "private", "store"]

_MAGIC = b"stretto kept 1\n"
_DIGEST = hashlib.sha256().digest_size


def folder(*names: str) -> Path:
    """Return where such files lie; `STRETTO_CACHE_DIR` moves it."""
    chosen = os.environ.get("STRETTO_CACHE_DIR")
    if chosen:
        return Path(chosen, *names)
    base = os.environ.get("XDG_CACHE_HOME")
    if base:
        return Path(base, "stretto", *names)
    try:
        return Path(Path.home(), ".cache", "stretto", *names)
    except RuntimeError:  # a user without a home
        return Path(tempfile.gettempdir(), f"stretto-cache-{os.getuid()}", *names)


def private(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a file for writing, empty, that its owner alone may read; he may allow more.

    What is recorded of a job says what it does, on what and for whom.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_CLOEXEC", 0)
    number = os.open(path, flags, 0o600)
    with contextlib.suppress(OSError):  # some file systems have no modes
        os.fchmod(number, 0o600)  # it may have been there, readable for others
    return os.fdopen(number, "wb")


def once(
    path: Path, make: Callable[[], bytes], *, wait_s: float = 30.0, most: int = 512
) -> bytes:
    """Return what is kept there, or made: by one process, while others wait for it.

    Who has waited in vain makes it beside the others: whoever went first has failed, or
    has nowhere to keep it. Of a folder the `most` files that are youngest stay.
    """
    data = load(path)
    if data is not None:
        return data
    lock = path.with_name(f"{path.name}.lock")
    with alone(lock, wait_s, meanwhile=path.exists) as waited:
        data = None if waited else load(path)
        if not waited and data is None:
            data = make()
            store(path, data)
            _thin(path.parent, most)
            with contextlib.suppress(OSError):
                lock.unlink()
    if data is None:
        data = load(path)
    if data is None:
        data = make()
        store(path, data)
    return data


def _thin(place: Path, most: int) -> None:
    """Delete a folder's oldest files when there are more than so many."""
    with contextlib.suppress(OSError):
        found = [Path(one.path) for one in os.scandir(place)]
        if len(found) > most:
            found.sort(key=lambda one: one.stat().st_mtime_ns)
            for one in found[: len(found) - most * 3 // 4]:
                one.unlink(missing_ok=True)


_STANDSTILL_S = 1.0
"""Who holds a lock and computes nothing for so long is stopped, or gets no turn."""


@contextlib.contextmanager
def alone(
    path: Path,
    wait_s: float = 60.0,
    *,
    meanwhile: Callable[[], bool] = lambda: False,
    idles: bool = False,
) -> Iterator[bool]:
    """Let one process at a time make what several want; the path is a lock's.

    Yields whether it had to wait. Who has waited long enough makes it, too: it is lost
    work, no more. So does who finds no locks here. A process that ends lets go; for one
    that is stopped nobody waits: whoever is late here is late for others. Unless who
    holds it `idles`, as others work for it. Nobody waits longer than until `meanwhile`
    says that it need not.
    """
    try:
        import fcntl

        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except (ImportError, OSError):
        yield False
        return
    waited = False
    try:
        since = time.monotonic()
        until, seen = since + wait_s, -1
        while (now := time.monotonic()) < until and not meanwhile():
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.pwrite(handle, b"%-20d" % os.getpid(), 0)
                break
            except OSError:
                waited = True
            if (used := _work_of_holder(handle)) != seen:
                seen, since = used, now
            elif not idles and used >= 0 and now - since > _STANDSTILL_S:
                break
            time.sleep(0.02)
        yield waited
    finally:
        os.close(handle)


def _work_of_holder(handle: int) -> int:
    """Return how long a lock's holder has computed, in ticks; -1 if nothing tells."""
    try:
        pid = int(os.pread(handle, 20, 0))
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])
    except (OSError, ValueError, IndexError):
        return -1


def load(path: Path) -> bytes | None:
    """Return what was stored there; what is wrong is deleted, with a warning.

    The user alone may be able to write it, and the folder that it lies in.
    """
    try:
        with path.open("rb") as file:
            why = _not_ours(os.fstat(file.fileno())) or _not_ours(path.parent.stat())
            data = b"" if why else file.read()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as e:
        why, data = e.strerror or str(e), b""
    if not why:
        head = len(_MAGIC) + _DIGEST
        body = data[head:]
        if data[:head] == _MAGIC + hashlib.sha256(body).digest() and body:
            return body
        why = "its checksum is wrong"
    discard(path, why)
    return None


def discard(path: Path, why: str) -> None:
    """Delete a file that is not what it should be, and warn of it."""
    with contextlib.suppress(OSError):
        path.unlink()
    warnings.warn(f"{path}: {why}; it is made anew", RuntimeWarning, stacklevel=3)


def store(path: Path, data: bytes) -> None:
    """Keep bytes; whoever reads meanwhile finds all of them or none.

    What cannot be written costs the work of making it again, no more.
    """
    name = None
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if path.parent.stat().st_uid == os.getuid():
            path.parent.chmod(0o700)
        handle, name = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(_MAGIC + hashlib.sha256(data).digest() + data)
        Path(name).replace(path)
    except OSError:
        if name is not None:
            with contextlib.suppress(OSError):
                Path(name).unlink()


def _not_ours(about: os.stat_result) -> str:
    """Return why others could have written something, or nothing."""
    if not hasattr(os, "getuid"):
        return ""
    if about.st_uid != os.getuid():
        return f"it or its folder belongs to uid {about.st_uid}"
    if about.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"others may write it or its folder (mode {about.st_mode & 0o777:o})"
    return ""
