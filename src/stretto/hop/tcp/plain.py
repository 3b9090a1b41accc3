"""Frames on non-blocking sockets in pure Python: the same wire as the compiled engine.

It serves where Numba cannot be had. A rank with either understands the other.
"""

from __future__ import annotations

import ctypes
import select
import socket
import struct
from collections import deque
from collections.abc import Mapping, Sequence

from stretto.hop import MORE, Window
from stretto.hop.tcp.words import (
    BUFFER,
    PUT,
    PUT_WORDS,
    SIGNAL,
    SIGNAL_WORDS,
    SMALL,
)

__all__ = ["PlainEngine"]

_PUT, _SIGNAL = struct.Struct(f"={PUT_WORDS}q"), struct.Struct(f"={SIGNAL_WORDS}q")
_ROUNDS = 16
_OVER = "it ended the connection"


def _bytes(address: int, nbytes: int) -> memoryview:
    return memoryview((ctypes.c_char * nbytes).from_address(address)).cast("B")


class _Link:
    """One connection."""

    def __init__(self, sock: socket.socket, peer: int) -> None:
        self.sock, self.peer, self.how = sock, peer, ""
        self.out: deque[memoryview] = deque()
        self.heard = bytearray()
        self.rest = memoryview(b"")
        """Where the rest of a put's data goes."""

    def flush(self) -> int:
        taken = 0
        while self.out and not self.how:
            try:
                sent = self.sock.sendmsg(list(self.out)[:64])
            except (BlockingIOError, InterruptedError):
                break
            except OSError as e:
                self.fail(str(e.strerror or e))
                break
            taken += sent
            while sent:
                first = self.out[0]
                if sent < len(first):
                    self.out[0] = first[sent:]
                    break
                sent -= len(first)
                self.out.popleft()
        return taken

    def fail(self, how: str) -> None:
        self.how = how
        self.out.clear()


class PlainEngine:
    """All connections of a rank, and the memory that they fill."""

    def __init__(
        self, window: Window, links: Mapping[tuple[int, int], socket.socket]
    ) -> None:
        self._window = window
        self._links = {way: _Link(sock, way[0]) for way, sock in links.items()}

    def put(self, peer: int, lane: int, source: int, offset: int, nbytes: int) -> bool:
        """Begin a put; False: the connection has ended."""
        link = self._links[peer, (lane & ~MORE) % self._window.lanes]
        if link.how:
            return False
        link.out.append(memoryview(_PUT.pack(PUT, offset, nbytes)))
        data = _bytes(source, nbytes) if nbytes else memoryview(b"")
        if nbytes:
            link.out.append(memoryview(bytes(data)) if nbytes <= SMALL else data)
        if nbytes > SMALL and not lane & MORE:
            link.flush()
        return True

    def signal(
        self, peer: int, lane: int, offset: int, value: int, side: int,
        words: Sequence[int],
    ) -> bool:  # fmt: skip
        """Raise a peer's word, and send all that waits; False: it has ended."""
        link = self._links[peer, (lane & ~MORE) % self._window.lanes]
        if link.how:
            return False
        frame = _SIGNAL.pack(SIGNAL, offset, value, side, *words)
        link.out.append(memoryview(frame))
        if not lane & MORE:
            link.flush()
        return True

    def progress(self) -> int:
        """Send and receive what can be."""
        moved = 0
        for link in self._links.values():
            if not link.how:
                moved += link.flush()
            if not link.how:
                moved += self._drain(link)
        return moved

    def wait(self, microseconds: int) -> int:
        """Sleep until something comes, at most so long."""
        poll = select.poll()
        if self._window.wake >= 0:
            poll.register(self._window.wake, select.POLLIN)
        for link in self._links.values():
            if not link.how:
                want = select.POLLIN | (select.POLLOUT if link.out else 0)
                poll.register(link.sock, want)
        return len(poll.poll(microseconds / 1e3))

    def busy(self) -> int:
        """Return whether something waits to be sent."""
        return int(any(link.out for link in self._links.values()))

    def end(self) -> None:
        """Leave the sockets alone: their numbers may soon be somebody else's."""
        for link in self._links.values():
            link.fail(link.how or _OVER)

    @property
    def has_ended(self) -> bool:
        """Return whether a connection has ended."""
        return any(link.how for link in self._links.values())

    def faults(self) -> Mapping[int, str]:
        """Return the peers whose connection has ended, and how."""
        return {link.peer: link.how for link in self._links.values() if link.how}

    # What comes.

    def _drain(self, link: _Link) -> int:
        taken = 0
        for _ in range(_ROUNDS):
            try:
                if len(link.rest):
                    got = link.sock.recv_into(link.rest)
                    link.rest = link.rest[got:]
                else:
                    data = link.sock.recv(BUFFER)
                    got = len(data)
                    link.heard += data
            except (BlockingIOError, InterruptedError):
                break
            except OSError as e:
                link.fail(str(e.strerror or e))
                break
            if not got:
                link.fail(_OVER)
                break
            taken += got
            if not self._take(link):
                link.fail("it sent what makes no sense")
                break
        return taken

    def _take(self, link: _Link) -> bool:
        """Deal with the frames that have come; return whether they made sense."""
        at, heard, window = 0, link.heard, self._window
        while len(heard) - at >= _PUT.size and not len(link.rest):
            kind, offset, nbytes = _PUT.unpack_from(heard, at)
            if kind == PUT:
                low, high = window.puts
                if offset < low or nbytes < 0 or nbytes > high - offset:
                    return False
                at += _PUT.size
                here = min(nbytes, len(heard) - at)
                if nbytes:
                    place = _bytes(window.address + offset, nbytes)
                    place[:here] = heard[at : at + here]
                    link.rest = place[here:]
                at += here
            elif kind != SIGNAL:
                return False
            elif len(heard) - at < _SIGNAL.size:
                break
            else:
                if not self._raise(*_SIGNAL.unpack_from(heard, at)[1:]):
                    return False
                at += _SIGNAL.size
        del heard[:at]
        return True

    def _raise(self, offset: int, value: int, side: int, *words: int) -> bool:
        low, high = self._window.words
        inside = all(low <= x < high and x % 8 == 0 for x in (offset, side, side + 16))
        if not inside:
            return False
        base = self._window.address
        for i, word in enumerate(words):
            ctypes.c_int64.from_address(base + side + 8 * i).value = word
        flag = ctypes.c_int64.from_address(base + offset)
        flag.value = max(flag.value, value)
        return True
