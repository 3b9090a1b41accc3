"""TLS between hosts, on request: a certificate and a key for each host, and one CA.

    STRETTO_TLS=FOLDER    of cert.pem, key.pem and ca.pem

Both ends show a certificate that the CA has signed; the CA is the job's own, so names
are not looked at. Whoever has a connection is given one end of a pair of sockets in its
place, and a thread carries bytes between the other end and the network. So nothing else
knows of TLS: neither messages nor the engine that sends frames without the interpreter
lock. It costs: every byte goes through this thread.
"""

from __future__ import annotations

import atexit
import functools
import os
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from stretto.errors import RendezvousError
from stretto.fabric import alive
from stretto.fabric.forks import close_quietly, forget_in_children
from stretto.fabric.loop import READ, WRITE, Loop
from stretto.fabric.patience import readable

if TYPE_CHECKING:
    import ssl  # imported where it is needed: few jobs do

VARIABLE = "STRETTO_TLS"
_FILES = ("cert.pem", "key.pem", "ca.pem")
_ROOM = 1 << 18
"""Bytes that wait at most, each way."""
_PIECE = 1 << 16
_LINGER_S = 2.0
"""How long a process that ends waits for what it has still to send."""


def is_asked(environment: Mapping[str, str] | None = None) -> bool:
    """Return whether connections between hosts are to be encrypted."""
    env = os.environ if environment is None else environment
    return bool(env.get(VARIABLE))


def secured(
    sock: socket.socket, *, server: bool, read_late: bool = False
) -> socket.socket:
    """Return what stands for a connected socket: itself where TLS is not asked for.

    `read_late` where the other end may read nothing for as long as it likes.
    """
    if not is_asked():
        return sock
    folder = os.environ[VARIABLE]
    sock.setblocking(False)
    alive.watch(sock, read_late=read_late)
    tls = _context(folder, server).wrap_socket(
        sock, server_side=server, do_handshake_on_connect=False
    )
    ours, theirs = socket.socketpair()
    for end in (ours, theirs):
        end.setblocking(False)
    _pump().add(_Link(tls, theirs, ours.fileno()))
    return ours


def require() -> None:
    """Raise what is wrong with the files, where TLS is asked for."""
    if is_asked():
        for server in (True, False):
            _context(os.environ[VARIABLE], server)


class _HasNumber(Protocol):
    def fileno(self) -> int: ...


def reason(sock: _HasNumber) -> str:
    """Return why a socket that `secured` gave has ended, if TLS was to blame."""
    why = _reasons.get(sock.fileno(), "") if is_asked() else ""
    return why and f"{why}; give all hosts {VARIABLE} with certificates of one CA"


_reasons: dict[int, str] = {}
"""By the number of the socket that was given."""


@functools.cache
def _context(folder: str, server: bool) -> ssl.SSLContext:
    import ssl

    role = ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT
    context = ssl.SSLContext(role)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    cert, key, authority = (Path(folder) / name for name in _FILES)
    try:
        if key.stat().st_mode & 0o077:
            raise RendezvousError(
                f"{VARIABLE}={folder}: others may read key.pem; run chmod 600"
            )
        context.load_cert_chain(cert, key)
        context.load_verify_locations(authority)
    except (OSError, ssl.SSLError) as e:
        raise RendezvousError(
            f"{VARIABLE}={folder}: {e}; want a folder of {', '.join(_FILES)}"
        ) from None
    return context


class _Link:
    """One connection: its TLS, and our end of the pair."""

    def __init__(self, tls: ssl.SSLSocket, near: socket.socket, number: int) -> None:
        self.tls, self.near, self._number = tls, near, number
        _reasons[number] = "TLS: it did not speak TLS"  # until it does
        self.out, self.back = bytearray(), bytearray()
        self._is_up = self._wants_write = False
        self._near_ended = self._far_ended = False
        self.wanted = 0, 0
        """The events that are looked for."""

    @property
    def is_over(self) -> bool:
        """Return whether nothing is left to carry."""
        if not self._is_up and self._near_ended:
            return True
        return (self._far_ended and not self.back) or (
            self._near_ended and not self.out
        )

    @property
    def is_flushing(self) -> bool:
        """Return whether something waits for the network."""
        if self._far_ended:
            return False
        with suppress(OSError, ValueError):
            return bool(self.out) or readable(self.near, 0)
        return False

    def wants(self) -> tuple[int, int]:
        """Return the events to look for: of the network's end, and of ours."""
        far = READ if len(self.back) < _ROOM and not self._far_ended else 0
        far |= WRITE if self._wants_write or (self._is_up and self.out) else 0
        near = READ if len(self.out) < _ROOM and not self._near_ended else 0
        near |= WRITE if self.back and self._is_up else 0
        return far, near

    def move(self) -> None:
        """Carry what can be carried."""
        import ssl

        self._move_in()  # also before it is up: whoever has our end may have closed it
        try:
            if not self._is_up:
                self._wants_write = False
                self.tls.do_handshake()
                self._is_up = True
                _reasons.pop(self._number, None)
            self._move_back()
            self._move_out()
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLWantWriteError:
            self._wants_write = True
        except (OSError, ssl.SSLError) as e:
            if not self._is_up or isinstance(e, ssl.SSLError):
                why = getattr(e, "verify_message", "") or getattr(e, "reason", "")
                _reasons[self._number] = f"TLS: {why or e}"
            self._far_ended = True
            self.out.clear()

    def _move_in(self) -> None:
        try:
            while len(self.out) < _ROOM and not self._near_ended:
                data = self.near.recv(_PIECE)
                self._near_ended = not data
                self.out += data
        except BlockingIOError:
            return
        except OSError:  # a reset: our end was closed with something unread
            self._near_ended = True

    def _move_out(self) -> None:
        while self.out:
            del self.out[: self.tls.send(self.out[:_PIECE])]

    def _move_back(self) -> None:
        import ssl

        with suppress(ssl.SSLWantReadError):
            while len(self.back) < _ROOM and not self._far_ended:
                data = self.tls.recv(_PIECE)
                self._far_ended = not data
                self.back += data
        try:
            while self.back:
                del self.back[: self.near.send(self.back)]
        except BlockingIOError:
            return
        except OSError:  # whoever had the other end has closed it
            self._near_ended = True
            self.back.clear()

    def fail(self, error: Exception) -> None:
        """End, whatever went wrong in this one: the others go on."""
        _reasons[self._number] = f"TLS: {type(error).__name__}: {error}"
        self._near_ended = self._far_ended = True
        self.out.clear()
        self.back.clear()

    def close(self) -> None:
        """End both ends."""
        with suppress(OSError):
            self.tls.close()
        with suppress(OSError):
            self.near.close()


class _Pump:
    """The loop that carries all connections of this process."""

    def __init__(self) -> None:
        self._links: list[_Link] = []
        self._loop = Loop("stretto-tls")
        self._loop.start()
        atexit.register(self._finish)
        forget_in_children(self)

    def add(self, link: _Link) -> None:
        """Carry one more."""
        self._links.append(link)
        self._loop.call(partial(self._move, link))

    def _move(self, link: _Link) -> None:
        try:
            link.move()
        except Exception as e:  # one connection must not end those of everybody else
            link.fail(e)
        wanted = (0, 0) if link.is_over else link.wants()
        for end, events, before in zip(
            (link.tls, link.near), wanted, link.wanted, strict=True
        ):
            if events != before:
                self._loop.watch(end, partial(self._move, link), events=events)
        link.wanted = wanted
        if link.is_over:
            self._links.remove(link)
            link.close()

    def forget(self) -> None:
        """Close what a forked child has of it."""
        numbers = [
            n for one in self._links for n in (one.tls.detach(), one.near.detach())
        ]
        close_quietly(numbers)
        _pump.cache_clear()

    def _finish(self) -> None:
        """Wait, when the process ends, for what is still to be sent."""
        until = time.monotonic() + _LINGER_S
        while time.monotonic() < until:
            if not any(link.is_flushing for link in list(self._links)):
                return
            time.sleep(0.005)


@functools.cache
def _pump() -> _Pump:
    return _Pump()
