"""Connect ranks by TCP. Random bytes at the port cost a connection and nothing else."""

from __future__ import annotations

import errno
import os
import selectors
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from stretto.errors import RendezvousError
from stretto.hop.tcp.proof import Comer, Refused, Server
from stretto.meeting import tls
from stretto.meeting.strangers import first_to_go

__all__ = ["Meet", "Way"]

_STRANGER_S = 5.0
"""How long a connection may take to prove what it is."""
_MOST_STRANGERS = 64
_PAUSE_S = 0.05

Way = tuple[int, int]
"""A peer, and a lane."""


@dataclass(slots=True)
class _Talk:
    """A connection whose ends are proving themselves."""

    sock: socket.socket
    end: Comer | Server
    since: float
    way: Way | None = None
    """Where we called; who came to us is not known before it is proved."""
    heard: bytes = b""
    source: str = ""
    """The address from which it came to us."""


def _rail(share: Any, lane: int) -> tuple[str, int]:
    """Return where a lane to a rank is connected to."""
    rails = share.get("rails") or [(share["host"], share["port"])]
    host, port = rails[lane % len(rails)]
    return str(host), int(port)


class Meet:
    """The connections of one rank, while they are made."""

    def __init__(
        self, rank: int, lanes: int, secret: bytes, listeners: Sequence[socket.socket]
    ) -> None:
        """Lanes go by the listeners' addresses in turn."""
        self.rank, self.lanes = rank, lanes
        self._secret, self._listeners = secret, listeners
        self._made: dict[Way, socket.socket] = {}
        self._talks: dict[int, _Talk] = {}
        self._why: dict[Way, str] = {}
        """What became of the last try."""
        self._next: dict[Way, float] = {}
        self._stranger = ""
        self._selector = selectors.DefaultSelector()

    def run(
        self, shares: Sequence[Any], peers: Sequence[int], within_s: float,
        check: Callable[[], None],
    ) -> dict[Way, socket.socket]:  # fmt: skip
        """Return a connection for every lane of every peer; raise who is not there.

        `check` is called now and then, and may raise why it is in vain.
        """
        until = time.monotonic() + within_s
        ways = [(peer, lane) for peer in peers for lane in range(self.lanes)]
        calls = [way for way in ways if way[0] > self.rank]
        for listener in self._listeners:
            listener.setblocking(False)
            self._selector.register(listener, selectors.EVENT_READ)
        try:
            while missing := [way for way in ways if way not in self._made]:
                check()
                now = time.monotonic()
                if now >= until:
                    raise self._absent(missing[0], shares, within_s)
                self._call(calls, shares, now)
                self._serve(min(_PAUSE_S, until - now))
        except BaseException:
            for sock in self._made.values():
                sock.close()
            raise
        finally:
            for talk in list(self._talks.values()):
                self._drop(talk)
            self._selector.close()
        return self._made

    def _call(self, calls: list[Way], shares: Sequence[Any], now: float) -> None:
        """Begin the connections that are ours to make; those that failed, again."""
        called = {talk.way for talk in self._talks.values()}
        for way in calls:
            if way in self._made or way in called or self._next.get(way, 0.0) > now:
                continue
            self._next[way] = now + _PAUSE_S
            where = _rail(shares[way[0]], way[1])
            family = socket.AF_INET6 if ":" in where[0] else socket.AF_INET
            sock = socket.socket(family, socket.SOCK_STREAM)
            sock.setblocking(False)
            error = self._bound(sock, way[1]) or sock.connect_ex(where)
            if error not in (0, errno.EINPROGRESS):
                self._why[way] = os.strerror(error)
                sock.close()
                continue
            end = Comer(self._secret, self.rank, *way)
            self._talks[sock.fileno()] = _Talk(sock, end, now, way)
            self._why.setdefault(way, "no answer")
            self._selector.register(sock, selectors.EVENT_WRITE)

    def _bound(self, sock: socket.socket, lane: int) -> int:
        """Have a connection begin at the address of its lane; return what failed."""
        if len(self._listeners) > 1:
            ours = self._listeners[lane % len(self._listeners)].getsockname()[0]
            try:
                sock.bind((ours, 0))
            except OSError as e:
                return e.errno or errno.EADDRNOTAVAIL
        return 0

    def _serve(self, within_s: float) -> None:
        for key, events in self._selector.select(within_s):
            talk = self._talks.get(key.fd)
            if talk is None:
                assert isinstance(key.fileobj, socket.socket), "it listens"
                self._accept(key.fileobj)
                continue
            try:
                if events & selectors.EVENT_WRITE:
                    self._connected(talk)
                else:
                    self._hear(talk)
            except (OSError, EOFError, Refused) as e:
                self._note(talk, e)
                self._drop(talk)
        now = time.monotonic()
        for talk in list(self._talks.values()):
            if talk.way is None and now - talk.since > _STRANGER_S:
                self._drop(talk)

    def _accept(self, listener: socket.socket) -> None:
        try:
            sock, address = listener.accept()
        except OSError:
            return
        strangers = {n: talk.source for n, talk in self._talks.items() if not talk.way}
        goes = first_to_go(strangers) if len(strangers) >= _MOST_STRANGERS else None
        if goes is not None:
            self._drop(self._talks[goes])
        try:
            secured = tls.secured(sock, server=True, read_late=True)
        except OSError:  # it has hung up already, or spoke before TLS did
            sock.close()
            return
        sock = secured
        sock.setblocking(False)
        end = Server(self._secret, self.rank)
        talk = _Talk(sock, end, time.monotonic(), source=str(address[0]))
        self._talks[sock.fileno()] = talk
        self._selector.register(sock, selectors.EVENT_READ)

    def _connected(self, talk: _Talk) -> None:
        error = talk.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            raise OSError(error, os.strerror(error))
        assert isinstance(talk.end, Comer), "we called"
        self._selector.unregister(talk.sock)
        del self._talks[talk.sock.fileno()]
        talk.sock = tls.secured(talk.sock, server=False, read_late=True)
        self._talks[talk.sock.fileno()] = talk
        self._selector.register(talk.sock, selectors.EVENT_READ)
        talk.sock.send(talk.end.begin())  # short enough for an empty buffer

    def _hear(self, talk: _Talk) -> None:
        data = talk.sock.recv(talk.end.want - len(talk.heard))
        if not data:
            raise EOFError(
                "it hung up before both were proved: it is no rank, was too busy, or "
                "found us too slow"
            )
        talk.heard += data
        if len(talk.heard) < talk.end.want:
            return
        heard, talk.heard = talk.heard, b""
        said = talk.end.hear(heard)
        if isinstance(talk.end, Server) and talk.end.is_done:
            rank, lane = talk.way = talk.end.way
            known = talk.way in self._made or not 0 <= rank < self.rank
            if known or not 0 <= lane < self.lanes:
                raise Refused(f"rank {rank} comes with lane {lane}, uninvited")
        if said:
            talk.sock.send(said)
        if talk.end.is_done:
            self._selector.unregister(talk.sock)
            del self._talks[talk.sock.fileno()]
            assert talk.way is not None, "it is proved"
            self._made[talk.way] = talk.sock

    def _note(self, talk: _Talk, error: Exception) -> None:
        why = tls.reason(talk.sock) or getattr(error, "strerror", None) or str(error)
        if isinstance(talk.end, Comer) and talk.way is not None:
            self._why[talk.way] = why
        elif isinstance(error, Refused) or tls.reason(talk.sock):
            self._stranger = f"somebody came, but {why}"

    def _drop(self, talk: _Talk) -> None:
        if self._talks.pop(talk.sock.fileno(), None) is not None:
            self._selector.unregister(talk.sock)
        talk.sock.close()

    def _absent(
        self, way: Way, shares: Sequence[Any], within_s: float
    ) -> RendezvousError:
        peer, many = way[0], len(self._listeners)
        mine = self._listeners[way[1] % many].getsockname()
        theirs = ":".join(map(str, _rail(shares[peer], way[1])))
        if peer > self.rank:
            what = f"rank {self.rank} cannot reach rank {peer} at {theirs} by tcp"
            why = self._why.get(way, "")
        else:
            what = f"rank {peer} at {theirs} did not come to rank {self.rank} at "
            what += f"{mine[0]}:{mine[1]} by tcp"
            why = self._stranger
        return RendezvousError(
            f"{what} within {within_s:g} s{': ' * bool(why)}{why}. Let these hosts "
            "reach each other through the firewall (STRETTO_PORTS=LOW-HIGH says which "
            "ports), or name the network's interface in STRETTO_INTERFACE"
        )
