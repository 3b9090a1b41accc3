"""A wire between two hosts that delays, is slow and loses: packets through a process.

Kernels without netem have this instead: a TUN device in each namespace, and between
them a heap of packets with the times at which they are due.
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import os
import random
import select
import struct
import subprocess
import sys
import time
from dataclasses import dataclass

from stretto.testing.namespaces import NoNamespaces, TwoHosts

__all__ = ["SlowHosts", "Wire"]

_TUNSETIFF = 0x400454CA
_TUN, _NO_HEADER = 0x0001, 0x1000
_NETWORK = 0x40000000
"""CLONE_NEWNET"""
_PACKET = 65536


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """What happens to packets, each way."""

    delay_s: float = 0.0
    bits_per_s: float = 1e12
    loss: float = 0.0
    """The part of packets that is lost, in a seeded order."""


class SlowHosts(TwoHosts):
    """Two hosts that such a wire joins."""

    def __init__(self, wire: Wire) -> None:
        """Name what will be made."""
        super().__init__()
        self._wire = wire
        self._relay: subprocess.Popen[bytes] | None = None

    def _join(self) -> None:
        numbers = (self._wire.delay_s, self._wire.bits_per_s, self._wire.loss)
        words = [sys.executable, __file__]
        words += [*self._spaces, *self._ends, *map(str, numbers)]
        self._relay = subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert self._relay.stdout is not None, "it is a pipe"
        if self._relay.stdout.readline() != b"ready\n":
            _, said = self._relay.communicate(timeout=10)
            raise NoNamespaces(
                f"no TUN devices: {said.decode(errors='replace')[-200:]}"
            )

    def __exit__(self, *error: object) -> None:
        """Remove them, and end the relay."""
        if self._relay is not None:
            self._relay.kill()
            self._relay.communicate()
        super().__exit__(*error)


def _open(space: str, name: str) -> int:
    """Make a TUN device in a namespace; return its descriptor."""
    libc = ctypes.CDLL(None, use_errno=True)
    at = os.open(f"/var/run/netns/{space}", os.O_RDONLY)
    try:
        if libc.setns(at, _NETWORK):
            raise OSError(ctypes.get_errno(), f"setns to {space}")
    finally:
        os.close(at)
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    asked = struct.pack("16sH22x", name.encode(), _TUN | _NO_HEADER)
    fcntl.ioctl(device, _TUNSETIFF, asked)
    return device


def carry(ends: tuple[int, int], wire: Wire) -> None:
    """Carry packets from each end to the other, for ever."""
    drawn = random.Random(1)
    free = dict.fromkeys(ends, 0.0)
    """When the way that begins at an end has sent all that it was given."""
    due: list[tuple[float, int, int, bytes]] = []
    count = 0
    while True:
        patience = max(0.0, due[0][0] - time.monotonic()) if due else 1.0
        ready, _, _ = select.select(ends, (), (), patience)
        for end in ready:
            packet = os.read(end, _PACKET)
            if drawn.random() < wire.loss:
                continue
            now = time.monotonic()
            free[end] = max(free[end], now) + 8 * len(packet) / wire.bits_per_s
            other = ends[1] if end == ends[0] else ends[0]
            count += 1
            heapq.heappush(due, (free[end] + wire.delay_s, count, other, packet))
        while due and due[0][0] <= time.monotonic():
            _, _, end, packet = heapq.heappop(due)
            try:
                os.write(end, packet)
            except OSError:  # its device is not up
                continue


def main(words: list[str]) -> None:
    """Be the relay of two namespaces."""
    spaces, names, numbers = words[:2], words[2:4], [float(w) for w in words[4:]]
    one, other = (_open(*pair) for pair in zip(spaces, names, strict=True))
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    delay_s, bits_per_s, loss = numbers
    carry((one, other), Wire(delay_s=delay_s, bits_per_s=bits_per_s, loss=loss))


if __name__ == "__main__":
    main(sys.argv[1:])
