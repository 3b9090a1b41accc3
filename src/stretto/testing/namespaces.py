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

    def __init__(self, wires: int = 1) -> None:
        """Name what will be made; nothing is yet. The first wire has `addresses`."""
        tag = f"{os.getpid() % 10_000}{next(_NUMBERS) % 100:02}"
        self._spaces = (f"sta{tag}", f"stb{tag}")
        self._ends = (f"va{tag}", f"vb{tag}")
        subnet = f"10.{200 + os.getpid() // 256 % 50}.{os.getpid() % 256}"
        self.addresses = (f"{subnet}.1", f"{subnet}.2")
        self._wires = wires

    def __enter__(self) -> TwoHosts:
        """Make them; `NoNamespaces` where that is not allowed."""
        try:
            for space in self._spaces:
                _ip("netns", "add", space)
            self._join()
            for space, end, address in zip(
                self._spaces, self._ends, self.addresses, strict=True
            ):
                self._address(space, end, address)
                _ip("-n", space, "link", "set", "lo", "up")
            for wire in range(1, self._wires):
                self._lay(wire)
            probe = self.command(0, ["true"])
            done = subprocess.run(probe, capture_output=True, text=True, check=False)
            if done.returncode:
                raise NoNamespaces(f"{shlex.join(probe)}: {done.stderr.strip()}")
        except BaseException:
            self._remove()
            raise
        return self

    def _join(self) -> None:
        """Lay the first wire between the hosts: an end in each, not up yet."""
        self._string(*self._ends)

    def _string(self, a: str, b: str) -> None:
        _ip("link", "add", a, "type", "veth", "peer", "name", b)
        for space, end in zip(self._spaces, (a, b), strict=True):
            _ip("link", "set", end, "netns", space)

    def _lay(self, wire: int) -> None:
        """Lay one more, with addresses of its own."""
        self._string(self.interface(0, wire), self.interface(1, wire))
        for host, space in enumerate(self._spaces):
            self._address(space, self.interface(host, wire), self.rail(host, wire))

    @staticmethod
    def _address(space: str, end: str, address: str) -> None:
        _ip("-n", space, "addr", "add", f"{address}/28", "dev", end)
        _ip("-n", space, "link", "set", end, "up")

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

    def cut(self, host: int = 1, wire: int = 0) -> None:
        """Take a host's wire away, as if it had lost its power."""
        end = self.interface(host, wire)
        _ip("-n", self._spaces[host], "link", "set", end, "down")

    def mend(self, host: int = 1, wire: int = 0) -> None:
        """Give it back."""
        end = self.interface(host, wire)
        _ip("-n", self._spaces[host], "link", "set", end, "up")

    def interface(self, host: int, wire: int = 0) -> str:
        """Return the name of a host's interface."""
        return self._ends[host] + (f"x{wire}" if wire else "")

    def rail(self, host: int, wire: int) -> str:
        """Return the address of a host on a wire: each is a network of its own."""
        subnet, _, last = self.addresses[host].rpartition(".")
        return f"{subnet}.{int(last) + 16 * wire}"
