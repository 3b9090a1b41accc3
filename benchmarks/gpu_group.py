"""A group of processes on one host, for measuring without a communicator.

The parent is a hub: it reads one message from every child and gives everybody all of
them, file descriptors included. That is all that an executor asks of a group.
"""

from __future__ import annotations

import os
import pickle
import socket
import struct
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from stretto.errors import CallError, CollectiveMismatch, CollectiveTimeout
from stretto.executors import Group

__all__ = ["ChildGroup", "Hub"]


def _send(link: socket.socket, payload: bytes, fds: Sequence[int]) -> None:
    header = struct.pack("<QI", len(payload), len(fds))
    socket.send_fds(link, [header], list(fds))
    link.sendall(payload)


def _receive(link: socket.socket) -> tuple[bytes, list[int]]:
    header, fds, _, _ = socket.recv_fds(link, 12, 16)
    while 0 < len(header) < 12:
        header += link.recv(12 - len(header))
    if len(header) < 12:
        raise ConnectionError("the other side is gone")
    length, num_fds = struct.unpack("<QI", header)
    assert num_fds == len(fds), "the kernel passes descriptors with their first byte"
    payload = bytearray()
    while len(payload) < length:
        more = link.recv(min(1 << 20, length - len(payload)))
        if not more:
            raise ConnectionError("the other side is gone")
        payload += more
    return bytes(payload), list(fds)


class Hub:
    """The parent's side: one socket a child, and a thread that mixes."""

    def __init__(self, num_ranks: int) -> None:
        pairs = [socket.socketpair() for _ in range(num_ranks)]
        self._links = [a for a, _ in pairs]
        self.children = [b for _, b in pairs]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        try:
            while True:
                said = [_receive(link) for link in self._links]
                for to, link in enumerate(self._links):
                    for rank, (payload, fds) in enumerate(said):
                        _send(link, payload, fds if rank != to else ())
                for _, fds in said:
                    for fd in fds:
                        os.close(fd)
        except OSError:
            for link in self._links:
                link.close()


class ChildGroup(Group):
    """What an executor asks of a group, over the socket to the hub."""

    def __init__(
        self, rank: int, num_ranks: int, fd: int, deadline_s: float = 20.0
    ) -> None:
        self.rank = rank
        self.num_ranks = num_ranks
        self.deadline_s = deadline_s
        self._link = socket.socket(fileno=fd)
        self._broken = np.zeros(1, np.int64)

    @property
    def broken(self) -> Any:
        """Return the word that says whether somebody is lost."""
        return self._broken

    def exchange(
        self, payload: Mapping[str, Any], fds: Sequence[int] = ()
    ) -> list[tuple[Mapping[str, Any], tuple[int, ...]]]:
        """Give everybody's payload and descriptors to everybody."""
        _send(self._link, pickle.dumps(dict(payload)), fds)
        said = []
        for _ in range(self.num_ranks):
            raw, received = _receive(self._link)
            said.append((pickle.loads(raw), tuple(received)))
        return said

    def fail(
        self,
        waiting_for: Sequence[int],
        where: str,
        *,
        mismatch: str = "",
        refused: str = "",
    ) -> Exception:
        """Break the group and say who is missing."""
        self._broken[0] = 1
        if refused:
            return CallError(refused)
        if mismatch:
            return CollectiveMismatch(mismatch)
        return CollectiveTimeout(f"missing ranks {list(waiting_for)}: {where}")
