"""Where the ranks of a job meet on one host: a Unix socket named after the job.

The folder is ours alone (0700), the socket too (0600), and each end checks the
other's user. A socket that nobody serves any more is a tombstone: it tells late
comers of this very job that its hub has died, and a new hub clears it away.
"""

from __future__ import annotations

import os
import socket
import stat
import time
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from stretto.errors import RendezvousError
from stretto.runtime.process import started_at_s

_TOMBSTONE_S = 60.0


def folder() -> Path:
    """Return the folder for our sockets, made if need be and ours alone."""
    home = os.environ.get("XDG_RUNTIME_DIR", "")
    if home and os.access(home, os.W_OK):
        path = Path(home) / "stretto"
    else:
        path = Path("/tmp") / f"stretto-{os.getuid()}"
    path.mkdir(mode=0o700, exist_ok=True)
    about = path.lstat()
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid():
        raise RendezvousError(
            f"{path} is not a folder of uid {os.getuid()}; remove it, or set "
            "XDG_RUNTIME_DIR to a folder of your own"
        )
    if about.st_mode & 0o077:
        path.chmod(0o700)
    return path


def socket_path(job: str) -> Path:
    """Return the socket's path for a job; equal jobs give equal paths."""
    name = sha256(f"{os.getuid()}:{job}".encode()).hexdigest()[:20]
    return folder() / f"{name}.sock"


def listen(path: Path, backlog: int = 128) -> socket.socket:
    """Serve a path; RendezvousError when somebody else does."""
    if _is_served(path):
        raise RendezvousError(
            f"another job already meets at {path}; give this one an address of its "
            "own, or end the other"
        )
    path.unlink(missing_ok=True)
    _sweep(path.parent)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with suppress(OSError):
        os.fchmod(sock.fileno(), 0o600)  # Linux gives the path this mode at birth
    try:
        sock.bind(os.fspath(path))
        path.chmod(0o600)
        sock.listen(backlog)
    except OSError as e:
        sock.close()
        raise RendezvousError(f"cannot serve {path}: {e}") from e
    return sock


def reach(path: Path) -> socket.socket | None:
    """Return a connection to whoever serves a path, or None."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.connect(os.fspath(path))
    except OSError:
        sock.close()
        return None
    return sock


def is_tombstone(path: Path, launcher: int | None) -> bool:
    """Return whether the hub of this very job was here and has died.

    So it is when nobody serves the socket although it was made after this process
    or its launcher started. (An older one is from another job of the same name.)
    """
    try:
        made_s = path.stat().st_ctime
    except OSError:
        return False
    starts = [started_at_s(pid) for pid in (os.getpid(), launcher) if pid]
    return any(start is not None and made_s > start for start in starts)


def _is_served(path: Path) -> bool:
    sock = reach(path) if path.exists() else None
    if sock is not None:
        sock.close()
    return sock is not None


def _sweep(where: Path) -> None:
    """Remove what hubs that were killed have left."""
    now = time.clock_gettime(time.CLOCK_REALTIME)
    for path in where.glob("*.sock"):
        with suppress(OSError):
            if now - path.stat().st_ctime < _TOMBSTONE_S:
                continue
            if not _is_served(path):
                path.unlink()
