"""Many ranks on few cores: one process imports what all need, and forks them.

A fresh rank imports for a second. Where ranks exceed cores they do so one after the
other; so there one process does it for all. It is as fresh as they would be: of one
thread, with nothing of the caller's, no device and no communicator. It forks whoever is
asked for, tells who they are by a descriptor, and how they ended.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stretto.fabric.patience import readable
from stretto.fabric.process import die_with_parent
from stretto.fabric.wire import Descriptor

__all__ = ["Forked", "Nursery", "main"]

_BOOT = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[1]); "
    "from stretto.fabric.meeting.launching.nursery import main; main(sys.argv[2:])"
)
_LONG_S = 60.0
_MOST = 1 << 12
"""Bytes of a message between the two."""


class Forked:
    """A rank that was forked for us, as `subprocess` would show it."""

    def __init__(self, nursery: Nursery, pid: int, pidfd: Descriptor) -> None:
        """It is known by a descriptor: its number may be another's once it ended."""
        self.pid, self._pidfd, self._nursery = pid, pidfd, nursery
        self.returncode: Any = None  # as that of `subprocess`

    def poll(self) -> int | None:
        """Return how it ended, if it has."""
        self._nursery.hear(0.0)
        return None if self.returncode is None else int(self.returncode)

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has ended."""
        until = None if timeout is None else time.monotonic() + timeout
        while self.returncode is None:
            left_s = _LONG_S if until is None else max(0.0, until - time.monotonic())
            self._nursery.hear(left_s)
            if left_s == 0.0 and self.returncode is None:
                raise subprocess.TimeoutExpired("a rank", timeout or 0.0)
        return int(self.returncode)

    def kill(self) -> None:
        """End it."""
        if self.returncode is None and self._pidfd.number >= 0:
            try:
                signal.pidfd_send_signal(self._pidfd.number, signal.SIGKILL)
            except ProcessLookupError:
                return


class Nursery:
    """The process that forks ranks, as their launcher sees it."""

    def __init__(self, preload: Sequence[str], env: Mapping[str, str]) -> None:
        """Start it; it loads `preload`, each a "module:function" that is called."""
        self._here, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ranks: dict[int, Forked] = {}
        try:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    *subprocess._args_from_interpreter_flags(),  # type: ignore[attr-defined]
                    *("-c", _BOOT, json.dumps(sys.path)),
                    *(str(os.getpid()), str(theirs.fileno()), *preload),
                ],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                env=env,
            )
        finally:
            theirs.close()

    def fork(self, rank: int, descriptors: Sequence[int]) -> Forked | None:
        """Return a rank that has these descriptors; None: the nursery has ended."""
        try:
            socket.send_fds(self._here, [b"%d" % rank], list(descriptors))
            while True:  # it may load still; and others may end meanwhile
                data, (*came,), _, _ = socket.recv_fds(self._here, _MOST, 1)
                if not data:
                    return None
                if came:
                    made = Forked(self, int(data), Descriptor(came[0]))
                    self._ranks[made.pid] = made
                    return made
                self._note(data)
        except OSError:
            return None

    def hear(self, within_s: float) -> None:
        """Take note of who has ended."""
        while readable(self._here, within_s):
            within_s = 0.0
            try:
                data = self._here.recv(_MOST)
            except OSError:
                data = b""
            if not data:  # it has ended, and whom it forked with it
                for rank in self._ranks.values():
                    if rank.returncode is None:
                        rank.returncode = -int(signal.SIGKILL)
                return
            self._note(data)

    def close(self) -> None:
        """Let it end, once all whom it forked have."""
        self._here.close()
        self._process.wait()

    def _note(self, data: bytes) -> None:
        pid, code = map(int, data.split())
        if pid in self._ranks:
            self._ranks[pid].returncode = code


def main(argv: list[str]) -> None:
    """Be the nursery: `parent_pid socket_fd preload...`. Ranks come out of it, too."""
    parent, number = int(argv[0]), int(argv[1])
    die_with_parent(parent)
    usual = signal.signal(signal.SIGINT, signal.SIG_IGN)  # ranks hear of it themselves
    here = socket.socket(fileno=number)
    os.set_inheritable(number, False)
    for word in argv[2:]:
        module, _, function = word.partition(":")
        getattr(importlib.import_module(module), function)()
    gc.collect()
    gc.freeze()
    rank = _serve(here)
    if rank is not None:  # this is the rank from here on
        signal.signal(signal.SIGINT, usual)
        rank()


def _serve(here: socket.socket) -> Callable[[], None] | None:
    """Fork whom we are asked for; return what one of those does, or None at the end."""
    bell, ringer = os.pipe()
    for end in (bell, ringer):
        os.set_blocking(end, False)
    handler = signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(ringer, warn_on_full_buffer=False)
    waits = select.poll()
    for each in (bell, here.fileno()):
        waits.register(each, select.POLLIN)
    asks, running = True, 0
    while asks or running:
        ready = [number for number, _ in waits.poll()]
        if bell in ready:
            os.read(bell, 1 << 12)
            running -= _told(here)
        if here.fileno() not in ready:
            continue
        data, descriptors, _, _ = socket.recv_fds(here, _MOST, 3)
        if not data:
            asks = False  # nobody is there to hear of more
            waits.unregister(here)
            continue
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, handler)
            here.close()
            os.close(bell)
            os.close(ringer)
            return _rank_of(int(data), list(descriptors))
        running += 1
        pidfd = os.pidfd_open(pid)  # before anybody may have waited for it
        socket.send_fds(here, [b"%d" % pid], [pidfd])
        for each in (pidfd, *descriptors):
            os.close(each)
    return None


def _told(here: socket.socket) -> int:
    """Wait for all that have ended, and say how; return how many they are."""
    many = 0
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return many
        if not pid:
            return many
        many += 1
        try:
            here.send(b"%d %d" % (pid, os.waitstatus_to_exitcode(status)))
        except OSError:  # the launcher is gone, and ends us
            continue


def _rank_of(rank: int, descriptors: list[int]) -> Callable[[], None]:
    """Return what a forked process does: what a fresh one would, as itself."""
    from stretto.fabric.meeting.launching import child

    os.environ["LOCAL_RANK"] = str(rank)
    if "numpy.random" in sys.modules:  # else all ranks would draw the same
        sys.modules["numpy.random"].seed()
    words = [str(rank), str(os.getppid()), *map(str, descriptors)]
    return lambda: child.main(words)
