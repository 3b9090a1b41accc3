"""Where the ranks of a job meet on one host: a Unix socket named after the job.

The folder is ours alone (0700), the socket too (0600), and each end checks the
other's user. It is there while ranks may come: it goes when all have. Two things tell
late comers of this very job that they wait in vain, until a new hub clears them away: a
socket that nobody serves (its hub has died), and a note of why the ranks did not meet.
"""

from __future__ import annotations

import json
import os
import socket
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path

from stretto.errors import RendezvousError
from stretto.fabric.faults import Fault
from stretto.fabric.process import start_ticks, started_at_s

_TOMBSTONE_S = 60.0


def folder() -> Path:
    """Return the folder for our sockets, made if need be and ours alone."""
    home = os.environ.get("XDG_RUNTIME_DIR", "")
    if home and os.access(home, os.W_OK):
        path = Path(home) / "stretto"
    else:
        path = Path("/tmp") / f"stretto-{os.getuid()}"
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        about = path.lstat()
        if stat.S_ISDIR(about.st_mode) and about.st_uid == os.getuid():
            if about.st_mode & 0o077:
                path.chmod(0o700)
            return path
        why = f"is not a folder of uid {os.getuid()}"
    except FileExistsError:
        why = f"is not a folder of uid {os.getuid()}"
    except OSError as e:
        why = f"cannot be made: {e.strerror}"
    raise RendezvousError(
        f"{path} {why}; remove it, or set XDG_RUNTIME_DIR to a folder of your own"
    )


def socket_path(job: str) -> Path:
    """Return the socket's path for a job, or for a part of it: `JOB@PART`.

    Equal jobs give equal paths, and parts of one begin alike.
    """
    whole = job.partition("@")[0]
    return folder() / f"{_hashed(whole)[:8]}{_hashed(job)[:12]}.sock"


def _hashed(job: str) -> str:
    return sha256(f"{os.getuid()}:{job}".encode()).hexdigest()


def clear(job: str) -> None:
    """Remove the sockets of a job that has ended, and of its parts."""
    for path in folder().glob(f"{socket_path(job).name[:8]}*.sock"):
        if is_deserted(path):
            path.unlink(missing_ok=True)


def listen(path: Path, backlog: int = 128) -> socket.socket:
    """Serve a path; RendezvousError when somebody else does."""
    if _is_served(path):
        raise RendezvousError(
            f"another job already meets at {path}; give this one an address of its "
            "own, or end the other"
        )
    sock = None
    try:
        path.unlink(missing_ok=True)
        _note(path).unlink(missing_ok=True)
        _sweep(path.parent)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with suppress(OSError):
            os.fchmod(sock.fileno(), 0o600)  # Linux gives the path this mode at birth
        sock.bind(os.fspath(path))
        path.chmod(0o600)
        sock.listen(backlog)
    except OSError as e:
        if sock is not None:
            sock.close()
        raise RendezvousError(f"cannot serve {path}: {e}") from e
    return sock


def end(path: Path, inode: int, generation: int, fault: Fault | None) -> None:
    """Clear a socket that was served; leave a note when the ranks did not meet."""
    with suppress(OSError):
        if path.lstat().st_ino == inode:
            path.unlink()
    if fault is None:
        return
    said = {"generation": generation, "fault": asdict(fault)}
    said |= {"pid": os.getpid(), "ticks": start_ticks(os.getpid())}
    note = _note(path)
    part = note.with_suffix(f".{os.getpid()}")
    with suppress(OSError):
        part.touch(0o600)
        part.write_text(json.dumps(said), encoding="utf-8")
        part.replace(note)


def failed(path: Path, launcher: int | None, heard: int) -> Fault | None:
    """Return why the ranks of this very job did not meet, if there is a note of it.

    It counts while its author lives, or when it was made after we or our launcher
    started. What was settled before `heard` is known here: then the next is meant.
    """
    note = _note(path)
    try:
        said = json.loads(note.read_text(encoding="utf-8"))
        fault = Fault(**{**said["fault"], "blamed": tuple(said["fault"]["blamed"])})
        if not isinstance(fault.text, str) or int(said["generation"]) <= heard:
            return None
        lives = said["ticks"] is not None and start_ticks(said["pid"]) == said["ticks"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return fault if lives or is_tombstone(note, launcher) else None


def _note(path: Path) -> Path:
    return path.with_suffix(".fault")


def reach(path: Path) -> socket.socket | None:
    """Return a connection to whoever serves a path, or None."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(1.0)  # a stopped hub takes no more than its backlog
        sock.connect(os.fspath(path))
    except OSError:
        sock.close()
        return None
    return sock


def reached() -> Iterator[socket.socket]:
    """Yield connections to whoever serves a socket of this user here."""
    for path in sorted(folder().glob("*.sock")):
        sock = reach(path)
        if sock is not None:
            yield sock


def is_tombstone(path: Path, launcher: int | None, since_s: float = 0.0) -> bool:
    """Return whether the hub of this very job was here, if nobody is there now.

    So it is when the socket was made after this process or its launcher started.
    (An older one is from another job of the same name, or from before `since_s`, a
    time that a caller knows all about.)
    """
    try:
        made_s = path.stat().st_ctime
    except OSError:
        return False
    starts = [started_at_s(pid) for pid in (os.getpid(), launcher) if pid]
    if made_s <= since_s:
        return False
    return any(start is not None and made_s > start for start in starts)


def is_deserted(path: Path) -> bool:
    """Return whether a socket is left that nobody serves; a busy hub still does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.setblocking(False)
        try:
            sock.connect(os.fspath(path))
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False


def _is_served(path: Path) -> bool:
    sock = reach(path) if path.exists() else None
    if sock is not None:
        sock.close()
    return sock is not None


def _sweep(where: Path) -> None:
    """Remove what hubs that were killed have left."""
    now = time.clock_gettime(time.CLOCK_REALTIME)
    for path in where.iterdir():
        with suppress(OSError):
            if now - path.stat().st_ctime < _TOMBSTONE_S:
                continue
            if path.suffix != ".sock" or not _is_served(path):
                path.unlink()
