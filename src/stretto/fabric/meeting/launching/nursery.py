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
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from stretto.fabric.loop import Loop
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
        self.pid, self.pidfd, self._nursery = pid, pidfd, nursery
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
        if self.returncode is None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd.number, signal.SIGKILL)


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
    rank = _Server(here).serve()
    if rank is not None:  # this is the rank from here on
        signal.signal(signal.SIGINT, usual)
        rank()


class _Server:
    """What the nursery does: fork whom it is asked for, and say how they ended."""

    def __init__(self, here: socket.socket) -> None:
        self._here, self._loop = here, Loop("stretto-nursery")
        self._asks = True
        self._running: dict[int, int] = {}
        """By process: a descriptor that tells when it ends."""
        self._rank: Callable[[], None] | None = None
        self._loop.watch(here, self._fork)

    def serve(self) -> Callable[[], None] | None:
        """Return what a rank does, in each that was forked; None at the end."""
        while self._rank is None and (self._asks or self._running):
            self._loop.step()
        return self._rank

    def _fork(self) -> None:
        data, descriptors, _, _ = socket.recv_fds(self._here, _MOST, 3)
        if not data:  # nobody is there to hear of more
            self._asks = False
            self._loop.unwatch(self._here)
            return
        pid = os.fork()  # which the loop does not survive in the child
        if pid == 0:
            self._here.close()
            for number in self._running.values():
                os.close(number)
            self._rank = _rank_of(int(data), list(descriptors))
            return
        pidfd = self._running[pid] = os.pidfd_open(pid)
        self._loop.watch(pidfd, partial(self._ended, pid))
        socket.send_fds(self._here, [b"%d" % pid], [pidfd])
        for each in descriptors:
            os.close(each)

    def _ended(self, pid: int) -> None:
        pidfd = self._running.pop(pid)
        self._loop.unwatch(pidfd)
        os.close(pidfd)
        _, status = os.waitpid(pid, 0)
        with suppress(OSError):  # the launcher is gone, and ends us
            self._here.send(b"%d %d" % (pid, os.waitstatus_to_exitcode(status)))


def _rank_of(rank: int, descriptors: list[int]) -> Callable[[], None]:
    """Return what a forked process does: what a fresh one would, as itself."""
    from stretto.fabric.meeting.launching import child

    os.environ["LOCAL_RANK"] = str(rank)
    if "numpy.random" in sys.modules:  # else all ranks would draw the same
        sys.modules["numpy.random"].seed()
    words = [str(rank), str(os.getppid()), *map(str, descriptors)]
    return lambda: child.main(words)
