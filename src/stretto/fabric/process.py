"""What an operating system knows about processes: who they are, whether they live.

Linux has all of it. Elsewhere a pidfd is None and a start is unknown, and the
callers make do with connections that end.
"""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import signal
import socket
import struct
import sys
import time
from contextlib import suppress
from pathlib import Path

from stretto.fabric.notices import notify
from stretto.fabric.porch import NO_ROOM
from stretto.fabric.variables import text_of
from stretto.fabric.wire import Descriptor

_PR_SET_PDEATHSIG = 1
_prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None
"""Found here: in a child that has not begun its program yet it might wait for ever."""
_MACOS_LOCAL_PEERCRED = (0, 1)

HOST_VARIABLE = "STRETTO_HOST"
"""Ranks that name different hosts in it are on different hosts, wherever they run."""


def host_id() -> str:
    """Return a name for this host: its node's name, the kernel's boot, its network.

    Containers of one kernel with networks of their own are hosts of their own.
    """
    if named := text_of(HOST_VARIABLE):
        return f"{named}/{named}"
    boot = _boot_id()
    if not boot:
        return platform.node()
    try:
        network = f".{Path('/proc/self/ns/net').stat().st_ino}"
    except OSError:
        network = ""
    return f"{platform.node()}/{boot}{network}"


@functools.cache
def _boot_id() -> str:
    """Return the kernel's name for its boot; nothing where it has none.

    Whoever lacks a descriptor to read it is on no other host: that is an OSError.
    """
    try:
        path = Path("/proc/sys/kernel/random/boot_id")
        return path.read_text(encoding="ascii").strip()
    except OSError as e:
        if e.errno in NO_ROOM:
            raise
        return ""


def open_pidfd(pid: int) -> Descriptor | None:
    """Return a descriptor that turns readable when the process ends."""
    opener = getattr(os, "pidfd_open", None)
    if opener is None:
        return None
    try:
        return Descriptor(opener(pid))
    except OSError:
        return None


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent dies.

    The signal comes when the *thread* that started us ends; `spawn` stays in its
    thread until all of its children have ended.
    """
    if _prctl is not None:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died before the kernel was asked
        os._exit(1)


def is_detached() -> bool:
    """Return whether this process was started to outlive its parent.

    `setsid` and `nohup` say so: a session of its own, a hang-up that is ignored.
    """
    if os.name != "posix":
        return False
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return ignored or os.getsid(0) == os.getpid()


def peer_uid(sock: socket.socket) -> int | None:
    """Return the user on the other end of a Unix socket; None where unknown."""
    if hasattr(socket, "SO_PEERCRED"):
        layout = struct.Struct("3i")
        raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, layout.size)
        return int(layout.unpack(raw)[1])
    with suppress(OSError):
        raw = sock.getsockopt(*_MACOS_LOCAL_PEERCRED, 8)
        return int(struct.unpack("2I", raw)[1])
    return None


def uid_refusal(theirs: int | None, ours: int) -> str | None:
    """Return why a peer of that user is not let in, or None when it is."""
    if theirs == ours:
        return None
    whose = "an unknown user" if theirs is None else f"uid {theirs}"
    return f"the peer belongs to {whose}, we are uid {ours}; only our own may join"


def start_ticks(pid: int) -> int | None:
    """Return when a process started, in the kernel's ticks since boot."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
        state, *fields = text.rpartition(")")[2].split()
        return None if state in "ZX" else int(fields[18])
    except (OSError, ValueError, IndexError):
        return None


def started_at_s(pid: int) -> float | None:
    """Return when a process started, as seconds since 1970."""
    ticks = start_ticks(pid)
    if ticks is None:
        return None
    try:
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError, ValueError):
        return None
    return time.clock_gettime(time.CLOCK_REALTIME) - age


def uptime_ns() -> int:
    """Return nanoseconds since this host started, also those it slept."""
    return time.clock_gettime_ns(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def most_descriptors() -> str:
    """Return what to say when a process may open no more descriptors."""
    try:
        import resource

        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    except (ImportError, OSError):
        return "see `ulimit -n`"
    return f"this process may have {soft} open (`ulimit -n`)"


def exit_words(returncode: int) -> str:
    """Return how a process ended, as the rest of a sentence.

    >>> exit_words(-9), exit_words(3)
    ('was killed by SIGKILL', 'exited with status 3')
    """
    if returncode >= 0:
        return f"exited with status {returncode}"
    try:
        name = signal.Signals(-returncode).name
    except ValueError:
        name = f"signal {-returncode}"
    return f"was killed by {name}"


def end_process(why: str) -> None:
    """End this process, whatever it is doing: nobody waits for it any more."""
    notify(f"pid {os.getpid()} ends itself: {why}")
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(1.0)
    os._exit(1)
