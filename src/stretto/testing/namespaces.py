"""Two hosts on one machine: network namespaces joined by a wire, for tests and figures.

Processes there have a network, a host name and an IPC namespace of their own, so that
nothing finds shared memory where there would be none. It needs root, and `ip`.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import shlex
import socket
import subprocess
from collections.abc import Sequence
from contextlib import suppress

from stretto.errors import StrettoError

_NUMBERS = itertools.count()
_NETWORK, _NAME, _IPC, _MOUNTS = 0x40000000, 0x04000000, 0x08000000, 0x00020000
"""CLONE_NEWNET, CLONE_NEWUTS, CLONE_NEWIPC, CLONE_NEWNS"""
_PRIVATE = 0x44000
"""MS_REC and MS_PRIVATE: what is mounted there is not mounted elsewhere."""


class NoNamespaces(StrettoError):
    """This system does not let us make namespaces; the text says why."""


def _ip(*words: str) -> None:
    try:
        done = subprocess.run(
            ["ip", *words], capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as e:
        raise NoNamespaces(f"ip {' '.join(words)}: {e}") from None
    if done.returncode:
        raise NoNamespaces(f"ip {' '.join(words)}: {done.stderr.strip()}")


class TwoHosts:
    """Hosts 0 and 1, called nodea and nodeb; a context manager."""

    names = ("nodea", "nodeb")

    def __init__(self) -> None:
        """Name what will be made; nothing is yet."""
        tag = f"{os.getpid() % 10_000}{next(_NUMBERS) % 100:02}"
        self._spaces = (f"sta{tag}", f"stb{tag}")
        self._ends = (f"va{tag}", f"vb{tag}")
        subnet = f"10.{200 + os.getpid() // 256 % 50}.{os.getpid() % 256}"
        self.addresses = (f"{subnet}.1", f"{subnet}.2")

    def __enter__(self) -> TwoHosts:
        """Make them; `NoNamespaces` where that is not allowed."""
        try:
            for space in self._spaces:
                _ip("netns", "add", space)
            self._join()
            ends = zip(self._spaces, self._ends, self.addresses, strict=True)
            for space, end, address in ends:
                _ip("-n", space, "addr", "add", f"{address}/24", "dev", end)
                _ip("-n", space, "link", "set", end, "up")
                _ip("-n", space, "link", "set", "lo", "up")
            probe = self.command(0, ["true"])
            done = subprocess.run(probe, capture_output=True, text=True, check=False)
            if done.returncode:
                raise NoNamespaces(f"{shlex.join(probe)}: {done.stderr.strip()}")
        except BaseException:
            self._remove()
            raise
        return self

    def _join(self) -> None:
        """Lay a wire between the hosts: an end in each, not up yet."""
        a, b = self._ends
        _ip("link", "add", a, "type", "veth", "peer", "name", b)
        for space, end in zip(self._spaces, self._ends, strict=True):
            _ip("link", "set", end, "netns", space)

    def __exit__(self, *error: object) -> None:
        """Remove them; what still runs there keeps them until it ends."""
        self._remove()

    def _remove(self) -> None:
        for space in self._spaces:
            with suppress(NoNamespaces):
                _ip("netns", "del", space)

    def command(self, host: int, words: Sequence[str]) -> list[str]:
        """Return the command that runs another one on a host."""
        script = f"hostname {self.names[host]}; exec {shlex.join(words)}"
        inside = ["unshare", "--uts", "--ipc", "sh", "-c", script]
        return ["ip", "netns", "exec", self._spaces[host], *inside]

    def enter(self, host: int) -> None:
        """Move this process to a host, as `command` does with the one it starts."""
        libc = ctypes.CDLL(None, use_errno=True)
        space = os.open(f"/var/run/netns/{self._spaces[host]}", os.O_RDONLY)
        try:
            failed = libc.setns(space, _NETWORK) or libc.unshare(_NAME | _IPC | _MOUNTS)
            failed = failed or libc.mount(b"", b"/", b"none", _PRIVATE, None)
            failed = failed or libc.mount(b"host", b"/sys", b"sysfs", 0, None)
            if failed:
                raise NoNamespaces(os.strerror(ctypes.get_errno()))
        finally:
            os.close(space)
        socket.sethostname(self.names[host])

    def cut(self, host: int = 1) -> None:
        """Take a host's wire away, as if it had lost its power."""
        _ip("-n", self._spaces[host], "link", "set", self._ends[host], "down")

    def mend(self, host: int = 1) -> None:
        """Give it back."""
        _ip("-n", self._spaces[host], "link", "set", self._ends[host], "up")

    def interface(self, host: int) -> str:
        """Return the name of a host's interface."""
        return self._ends[host]
