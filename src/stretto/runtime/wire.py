"""Frames between a rank and the hub: length-prefixed JSON with file descriptors.

A frame is a magic word, the length of its body, the number of file descriptors
that travel with it (SCM_RIGHTS), and the body: one JSON object in UTF-8. What
comes from a socket is never unpickled, never larger than the reader's limit, and
whatever is wrong with it is a `WireError` for that connection alone.
"""

from __future__ import annotations

import array
import json
import os
import select
import socket
import struct
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from stretto.errors import WireError

HEADER = struct.Struct("<4sII")
MAGIC = b"STR1"
STRANGER_LIMIT = 4 << 10
"""Bytes of a body from somebody who has not said who they are."""
MEMBER_LIMIT = 16 << 20
MAX_DESCRIPTORS = 4096
_DESCRIPTORS_A_MESSAGE = 250  # the kernel's SCM_MAX_FD is 253
_BACKLOG_LIMIT = 64 << 20


class Descriptor:
    """A file descriptor that closes when nobody holds it any more."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number

    def take(self) -> int:
        """Hand the number over; the taker closes it."""
        number, self.number = self.number, -1
        return number

    def __del__(self) -> None:
        if getattr(self, "number", -1) >= 0:
            os.close(self.take())


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """One message as it came."""

    body: Mapping[str, Any]
    descriptors: tuple[Descriptor, ...] = ()


def encode(body: Mapping[str, Any], num_descriptors: int = 0) -> bytes:
    """Return the bytes of a frame."""
    text = json.dumps(body, separators=(",", ":")).encode()
    return HEADER.pack(MAGIC, len(text), num_descriptors) + text


class Decoder:
    """Bytes in any portions in, whole frames out; no I/O."""

    def __init__(self, limit: int = STRANGER_LIMIT) -> None:
        self.limit = limit
        self._bytes = bytearray()
        self._descriptors: deque[Descriptor] = deque()

    def feed(self, data: bytes, descriptors: Iterable[Descriptor] = ()) -> list[Frame]:
        """Return the frames that these bytes complete."""
        self._bytes += data
        self._descriptors.extend(descriptors)
        if len(self._descriptors) > MAX_DESCRIPTORS:
            raise WireError(f"more than {MAX_DESCRIPTORS} file descriptors waiting")
        frames = []
        while (frame := self._next()) is not None:
            frames.append(frame)
        return frames

    def _next(self) -> Frame | None:
        if len(self._bytes) < HEADER.size:
            if not MAGIC.startswith(self._bytes[: len(MAGIC)]):
                raise WireError(f"not a stretto frame: {bytes(self._bytes)[:8]!r}")
            return None
        magic, nbytes, wanted = HEADER.unpack_from(self._bytes)
        if magic != MAGIC:
            raise WireError(f"not a stretto frame: it starts with {magic!r}")
        if nbytes > self.limit or wanted > MAX_DESCRIPTORS:
            raise WireError(
                f"a frame of {nbytes} bytes and {wanted} descriptors; "
                f"at most {self.limit} and {MAX_DESCRIPTORS} are taken"
            )
        end = HEADER.size + nbytes
        if len(self._bytes) < end:
            return None
        if len(self._descriptors) < wanted:
            raise WireError(f"{wanted} descriptors promised, fewer came")
        body = _parse(bytes(self._bytes[HEADER.size : end]))
        del self._bytes[:end]
        came = tuple(self._descriptors.popleft() for _ in range(wanted))
        return Frame(body=body, descriptors=came)


def _parse(text: bytes) -> Mapping[str, Any]:
    try:
        body = json.loads(text)
    except (ValueError, RecursionError) as e:
        raise WireError(f"a frame's body is not JSON: {e}") from None
    if not isinstance(body, dict):
        raise WireError(f"a frame's body is a {type(body).__name__}, not an object")
    return body


def wait_ready(connection: Connection, timeout_s: float) -> bool:
    """Wait until there is something to read, or room for what waits to be sent."""
    poll = select.poll()
    wanted = select.POLLIN | (select.POLLOUT if connection.is_sending else 0)
    poll.register(connection.fileno(), wanted)
    return bool(poll.poll(max(0.0, timeout_s) * 1e3))


class Connection:
    """A non-blocking stream socket that carries frames both ways."""

    def __init__(self, sock: socket.socket, *, limit: int = STRANGER_LIMIT) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._decoder = Decoder(limit)
        self._out: deque[tuple[bytes, tuple[Descriptor, ...]]] = deque()
        self._backlog = 0

    def fileno(self) -> int:
        """Return the socket's number, for selectors."""
        return self._socket.fileno()

    @property
    def is_sending(self) -> bool:
        """Whether something waits to be sent."""
        return bool(self._out)

    def trust(self) -> None:
        """Take frames of a member's size from now on."""
        self._decoder.limit = MEMBER_LIMIT

    def post(
        self, body: Mapping[str, Any], descriptors: Iterable[Descriptor] = ()
    ) -> None:
        """Queue a frame and send what can be sent without waiting."""
        held = tuple(descriptors)
        data = encode(body, len(held))
        # Descriptors ride on bytes of their own, a message's worth on each.
        for first in range(0, len(held), _DESCRIPTORS_A_MESSAGE):
            part = held[first : first + _DESCRIPTORS_A_MESSAGE]
            self._out.append((data[:1], part))
            data = data[1:]
        self._out.append((data, ()))
        self._backlog += len(data)
        if self._backlog > _BACKLOG_LIMIT:
            raise WireError(f"the peer has not read {self._backlog} bytes")
        self.flush()

    def flush(self) -> None:
        """Send what the socket takes now."""
        while self._out:
            data, held = self._out[0]
            try:
                sent = self._send(data, held)
            except (BlockingIOError, InterruptedError):
                return
            self._out.popleft()
            self._backlog = max(0, self._backlog - sent)
            if sent < len(data):
                self._out.appendleft((data[sent:], ()))

    def _send(self, data: bytes, held: tuple[Descriptor, ...]) -> int:
        if not held:
            return self._socket.send(data)
        numbers = array.array("i", [d.number for d in held])
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, numbers)
        return self._socket.sendmsg([data], [rights])

    def receive(self) -> list[Frame]:
        """Return the frames that have come; EOFError when the peer has ended."""
        try:
            data, held = self._read()
        except (BlockingIOError, InterruptedError):
            return []
        except OSError as e:
            raise EOFError(str(e)) from None
        if not data:
            raise EOFError
        return self._decoder.feed(data, held)

    def _read(self) -> tuple[bytes, list[Descriptor]]:
        if self._socket.family != getattr(socket, "AF_UNIX", None):
            return self._socket.recv(1 << 16), []
        space = socket.CMSG_SPACE(_DESCRIPTORS_A_MESSAGE * 4)
        cloexec = getattr(socket, "MSG_CMSG_CLOEXEC", 0)
        data, control, flags, _ = self._socket.recvmsg(1 << 16, space, cloexec)
        held: list[Descriptor] = []
        for level, kind, raw in control:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                numbers = array.array("i")
                numbers.frombytes(raw[: len(raw) - len(raw) % numbers.itemsize])
                held.extend(map(Descriptor, numbers))
        if flags & socket.MSG_CTRUNC:
            raise WireError("file descriptors were cut off on the way")
        return data, held

    def close(self) -> None:
        """End the connection; the peer sees the end of the stream."""
        self._out.clear()
        self._socket.close()
