"""Frames between a rank and the hub: length-prefixed JSON with file descriptors.

A frame is a magic word, the length of its body, the number of file descriptors
that travel with it (SCM_RIGHTS), and the body: one JSON object in UTF-8. What
comes from a socket is never unpickled and never larger than the reader's limit.
Reading is total: any bytes give frames, or one `Refused` that says what is wrong, after
which nothing of that connection is read. Nothing that was read can raise later.
"""

from __future__ import annotations

import array
import json
import math
import os
import select
import socket
import struct
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from stretto.errors import WireError, is_interruption
from stretto.fabric import alive
from stretto.fabric.loop import LONGEST_WAIT_S

HEADER = struct.Struct("<4sII")
MAGIC = b"STR1"
STRANGER_LIMIT = 4 << 10
"""Bytes of a body from somebody who has not said who they are."""
MEMBER_LIMIT = 16 << 20
MAX_DESCRIPTORS = 4096
STRANGER_DESCRIPTORS = 4
_DEEPEST = 64
"""How deep lists and objects of a body may lie in one another."""
_LONGEST_NUMBER = 40
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

    def close(self) -> None:
        """Close it, unless that was done: its number may be somebody else's by now."""
        if self.number >= 0:
            os.close(self.take())

    def __del__(self) -> None:
        if getattr(self, "number", -1) >= 0:
            os.close(self.take())


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """One message as it came."""

    body: Mapping[str, Any]
    descriptors: tuple[Descriptor, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """What came is no message of ours; `why` says what is wrong with it."""

    why: str
    is_ours: bool = False
    """Whether this process, and not who sent it, is to blame."""

    def to_error(self) -> WireError:
        """Return the error that a caller is told."""
        return WireError(self.why)


def encode(body: Mapping[str, Any], num_descriptors: int = 0) -> bytes:
    """Return the bytes of a frame."""
    text = json.dumps(body, separators=(",", ":"), allow_nan=False).encode()
    return HEADER.pack(MAGIC, len(text), num_descriptors) + text


class Decoder:
    """Bytes in any portions in, whole frames out; no I/O, and nothing is raised."""

    def __init__(
        self, limit: int = STRANGER_LIMIT, descriptors: int = MAX_DESCRIPTORS
    ) -> None:
        self.limit = limit
        self.most_descriptors = descriptors
        self._bytes = bytearray()
        self._descriptors: deque[Descriptor] = deque()
        self.is_over = False
        """Whether nothing more is taken."""

    def feed(
        self, data: bytes, descriptors: Iterable[Descriptor] = ()
    ) -> list[Frame | Refused]:
        """Return the frames that these bytes complete; a refusal is the last."""
        found: list[Frame | Refused] = []
        if self.is_over:
            return found
        self._bytes += data
        self._descriptors.extend(descriptors)
        if len(self._descriptors) > self.most_descriptors:
            most = self.most_descriptors
            found.append(Refused(why=f"more than {most} file descriptors waiting"))
        while not (found and isinstance(found[-1], Refused)):
            frame = self._next()
            if frame is None:
                return found
            found.append(frame)
        self.end()
        return found

    def end(self) -> None:
        """Take nothing more; give back what has come of a frame that is not whole."""
        self.is_over = True
        self._bytes.clear()
        self._descriptors.clear()

    def _next(self) -> Frame | Refused | None:
        if len(self._bytes) < HEADER.size:
            if not MAGIC.startswith(self._bytes[: len(MAGIC)]):
                return Refused(why=f"not a stretto frame: {bytes(self._bytes)[:8]!r}")
            return None
        magic, nbytes, wanted = HEADER.unpack_from(self._bytes)
        if magic != MAGIC:
            return Refused(why=f"not a stretto frame: it starts with {magic!r}")
        if nbytes > self.limit or wanted > self.most_descriptors:
            return Refused(
                why=f"a frame of {nbytes} bytes and {wanted} descriptors; "
                f"at most {self.limit} and {self.most_descriptors} are taken"
            )
        end = HEADER.size + nbytes
        if len(self._bytes) < end:
            return None
        if len(self._descriptors) < wanted:
            return Refused(why=f"{wanted} descriptors promised, fewer came")
        body = _parse(bytes(self._bytes[HEADER.size : end]))
        del self._bytes[:end]
        if isinstance(body, Refused):
            return body
        came = tuple(self._descriptors.popleft() for _ in range(wanted))
        return Frame(body=body, descriptors=came)


def _parse(text: bytes) -> Mapping[str, Any] | Refused:
    try:
        body = json.loads(
            text.decode(),
            parse_int=_whole,
            parse_float=_finite,
            parse_constant=_no_number,
        )
        if text.count(b"[") + text.count(b"{") > _DEEPEST and not _is_flat(body):
            return Refused(why=f"a frame's body is deeper than {_DEEPEST}")
        if b"\\u" in text:  # half of a surrogate pair: JSON has it, UTF-8 has not
            json.dumps(body, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as e:
        return Refused(why=f"a frame's body is not JSON: {str(e)[:200]}")
    if not isinstance(body, dict):
        return Refused(why=f"a frame's body is a {type(body).__name__}, not an object")
    return body


def _whole(text: str) -> int:
    if len(text) > _LONGEST_NUMBER:
        raise ValueError(f"a number of {len(text)} digits")
    return int(text)


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"the number {text[:_LONGEST_NUMBER]}")
    return number


def _no_number(text: str) -> float:
    raise ValueError(f"the number {text}")


def _is_flat(value: Any, left: int = _DEEPEST) -> bool:
    """Return whether lists and objects lie no deeper in one another than is taken."""
    if isinstance(value, dict):
        value = list(value.values())
    if not isinstance(value, list):
        return True
    return left > 0 and all(_is_flat(one, left - 1) for one in value)


def wait_ready(connection: Connection, timeout_s: float) -> bool:
    """Wait until there is something to read, or room for what waits to be sent."""
    poll = select.poll()
    wanted = select.POLLIN | (select.POLLOUT if connection.is_sending else 0)
    poll.register(connection.fileno(), wanted)
    return bool(poll.poll(min(max(0.0, timeout_s), LONGEST_WAIT_S) * 1e3))


class Connection:
    """A non-blocking stream socket that carries frames both ways.

    Who has gone reads nothing any more, but may have said why before. So what can no
    longer be sent is dropped without an error: `receive` gives everything that came
    first, and only then says that the peer has ended.
    """

    def __init__(self, sock: socket.socket, *, limit: int = STRANGER_LIMIT) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._decoder = Decoder(limit, STRANGER_DESCRIPTORS)
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
        self._decoder.most_descriptors = MAX_DESCRIPTORS

    def keep_alive(self, *, beats: bool = False) -> None:
        """Notice when the host at the other end is gone; see `alive.watch`."""
        alive.watch(self._socket, beats=beats)

    def post(
        self, body: Mapping[str, Any], descriptors: Iterable[Descriptor] = ()
    ) -> None:
        """Queue a frame and send what can be sent without waiting."""
        held = tuple(descriptors)
        data = encode(body, len(held))
        if len(data) > HEADER.size + MEMBER_LIMIT:  # nobody takes it: say so here
            raise WireError(f"a message of {len(data)} bytes; want {MEMBER_LIMIT}")
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
        """Send what the socket takes now; to a peer that has gone, nothing."""
        while self._out:
            data, held = self._out.popleft()  # before: nothing is ever sent twice
            try:
                sent = self._send(data, held)
            except (BlockingIOError, InterruptedError):
                self._out.appendleft((data, held))
                return
            except ConnectionError as e:
                if is_interruption(e):
                    raise
                self._out.clear()
                self._backlog = 0
                return
            self._backlog = max(0, self._backlog - sent)
            if sent < len(data):
                self._out.appendleft((data[sent:], ()))

    def _send(self, data: bytes, held: tuple[Descriptor, ...]) -> int:
        if not held:
            return self._socket.send(data)
        numbers = array.array("i", [d.number for d in held])
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, numbers)
        return self._socket.sendmsg([data], [rights])

    def receive(self) -> list[Frame | Refused]:
        """Return frames that have come; EOFError when the peer has ended.

        Where there are none, nothing is left to be read, not even a part of one: who
        has died has said all.
        """
        frames: list[Frame | Refused] = []
        while not (frames or self._decoder.is_over):
            try:
                data, held = self._read()
            except (BlockingIOError, InterruptedError):
                return []
            except OSError as e:
                if is_interruption(e):
                    raise
                raise EOFError(str(e)) from None
            if not data:
                raise EOFError
            if isinstance(held, Refused):
                return [held]
            frames = self._decoder.feed(data, held)
        return frames

    def _read(self) -> tuple[bytes, list[Descriptor] | Refused]:
        """Return bytes and descriptors, or why some of these were cut off."""
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
            if len(held) >= _DESCRIPTORS_A_MESSAGE:
                return data or b"\0", Refused(why="too many file descriptors at once")
            why = f"pid {os.getpid()} has no room for more file descriptors: "
            return data or b"\0", Refused(why=why + "see `ulimit -n`", is_ours=True)
        return data, held

    def close(self) -> None:
        """End the connection; the peer sees the end of the stream."""
        self._out.clear()
        self._decoder.end()
        self._socket.close()
