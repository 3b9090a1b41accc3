"""Where others come to an engine, and from where it goes to them."""

from __future__ import annotations

import os
import selectors
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from stretto.errors import CallError, RendezvousError
from stretto.meeting import address, tls
from stretto.meeting.process import (
    host_id,
    host_name,
    is_same_host,
    peer_uid,
    uid_refusal,
)
from stretto.meeting.strangers import first_to_go
from stretto.transfer.engine.known import hand_out
from stretto.transfer.engine.meet import Talk
from stretto.transfer.engine.peer import Peer
from stretto.transfer.ports import EngineLike
from stretto.transfer.ways.pending import Pending

__all__ = ["Door", "metadata_of", "place_of"]

_STRANGER_S = 60.0
"""How long who has proved nothing may be silent, while there is room: a host that is
busy takes seconds to answer."""
_SPEAKS_S = 8.0
"""How long who is to speak TLS may take to begin: who does not waits for us."""
_MOST_STRANGERS = 64
_CLOSES = "this engine closes"
_Reached = tuple[str, socket.socket, Pending[Peer]]


class Door:
    """Where others come to an engine, and from where it goes to them."""

    def __init__(self, engine: EngineLike, listen: str | None) -> None:
        self._engine = engine
        self.path = address.socket_path(f"transfer {engine.job} {engine.name}")
        self._near = address.listen(self.path)
        self._inode = self.path.lstat().st_ino
        self._far: socket.socket | None = None
        self.address = ""
        if listen is not None:
            tls.require()
            host, port = split(listen)
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            try:
                self._far = socket.create_server((host, port), family=family)
            except (OSError, UnicodeError) as e:
                self._near.close()
                raise RendezvousError(f"cannot listen at {listen}: {e}") from e
            self.address = f"{host}:{self._far.getsockname()[1]}"
        self._talks: list[Talk] = []
        self._visits: list[Talk] = []
        self._reached: list[_Reached] = []
        self._is_closed = False
        for sock in (self._near, self._far):
            if sock is not None:
                sock.setblocking(False)
                engine.loop.selector.register(
                    sock, selectors.EVENT_READ, lambda _, s=sock: self._accept(s)
                )

    def _accept(self, listener: socket.socket) -> None:
        try:
            sock, _ = listener.accept()
        except OSError:
            return
        self._talks = [talk for talk in self._talks if not talk.is_over]
        self._make_room()
        is_near = listener is self._near
        if is_near and uid_refusal(peer_uid(sock), os.getuid()):
            sock.close()
            return
        try:
            talk = Talk(self._engine, sock, is_near=is_near, is_comer=False)
        except OSError:  # it has hung up already
            sock.close()
            return
        self._talks.append(talk)
        now = time.monotonic()
        self._engine.loop.at(now + _STRANGER_S, talk.expire)
        if tls.is_asked() and not is_near:
            self._engine.loop.at(now + _SPEAKS_S, talk.expire_plain)

    def _make_room(self) -> None:
        """Send away the oldest stranger of the host that most have come from.

        Who has proved himself is none, and never sent away for those who have not.
        """
        strangers = {talk: talk.source for talk in self._talks if talk.is_stranger}
        goes = first_to_go(strangers) if len(strangers) >= _MOST_STRANGERS else None
        if goes is not None:
            goes.dismiss("full")

    def connect(self, where: str | Mapping[str, Any]) -> Pending[Peer]:
        """Connect with an engine, unless it is a peer; see `Engine.connect`."""
        if not isinstance(where, str):
            return self._connect_with(where)
        found: Pending[Peer]
        found = Pending(self._engine.loop, f"connection to {where!r}")
        known = self._engine.known.at(where)
        if known is not None:
            hand_out(known, found)
        elif ":" in where:
            self._engine.loop.apart(lambda: self.come(where, found))
        else:
            self.come(where, found)
        return found

    def _connect_with(self, metadata: Mapping[str, Any]) -> Pending[Peer]:
        """Connect with the engine that exported metadata, and with no other."""
        where, identity = place_of(metadata), str(metadata["identity"])
        found: Pending[Peer]
        found = Pending(self._engine.loop, f"connection to {where!r}")
        known = self._engine.known.peers.get(identity)
        if known is not None:
            hand_out(known, found)
            return found
        inner = self.connect(where)

        def told() -> None:
            if inner.error is not None:
                found.fail(inner.error)
            elif (peer := inner.wait()).identity == identity:
                found.finish(peer)
            else:
                found.fail(RendezvousError(f"{where!r} is another engine by now"))

        inner.then(told)
        return found

    def come(self, name: str, found: Pending[Peer]) -> None:
        """Begin to connect with an engine of this host by name, or elsewhere."""
        try:
            sock = _reached(self._engine.job, name)
        except (OSError, RendezvousError) as e:
            is_said = isinstance(e, RendezvousError)
            found.fail(e if is_said else RendezvousError(f"{name}: {e}"))
            return

        reached = name, sock, found
        self._reached.append(reached)
        if self._is_closed:
            self._turn_back(reached)
        else:
            self._engine.loop.call(lambda: self._visit(reached))

    def _visit(self, reached: _Reached) -> None:
        if not self._take(reached):
            return
        name, sock, found = reached
        is_near = ":" not in name
        try:
            talk = Talk(
                self._engine, sock, is_near=is_near, is_comer=True, found=found,
                name=name,
            )  # fmt: skip
        except OSError as e:
            sock.close()
            found.fail(RendezvousError(f"engine {name!r}: it hung up: {e}"))
            return
        self._visits = [visit for visit in self._visits if not visit.is_over]
        self._visits.append(talk)

    def _turn_back(self, reached: _Reached) -> None:
        if self._take(reached):
            name, sock, found = reached
            sock.close()
            found.fail(RendezvousError(f"engine {name!r}: {_CLOSES}"))

    def _take(self, reached: _Reached) -> bool:
        """Return whether it is for the caller: the loop's thread, or another."""
        try:
            self._reached.remove(reached)
        except ValueError:
            return False
        return True

    def disown(self) -> None:
        """Close what a child that this process forks has of it; nothing is said."""
        self._is_closed = True
        waiting = [sock for _, sock, _ in self._reached]
        for sock in (self._near, self._far, *waiting):
            if sock is not None:
                sock.close()
        for talk in (*self._talks, *self._visits):
            talk.disown()

    def close(self, peers: Mapping[str, Peer]) -> None:
        """Let nobody in any more, and go to nobody; lose who has come meanwhile."""
        self._is_closed = True
        for sock in (self._near, self._far):
            if sock is not None:
                with suppress(KeyError, ValueError):
                    self._engine.loop.selector.unregister(sock)
                sock.close()
        for reached in list(self._reached):
            self._turn_back(reached)
        for talk in (*self._talks, *self._visits):
            talk.end(_CLOSES)
        for peer in peers.values():
            peer.lose("this engine closed the connection")
        address.end(self.path, self._inode, 0, None)


def metadata_of(name: str, identity: str, hop: str, address: str) -> dict[str, str]:
    """Return what another engine needs to connect with this one."""
    host, _, port = address.rpartition(":")
    if host.strip("[]") in ("", "0.0.0.0", "::") and port:
        address = f"{_own_address()}:{port}"
    return {
        "name": name, "identity": identity, "hop": hop, "host": host_id(),
        "address": address,
    }  # fmt: skip


def place_of(metadata: Mapping[str, Any]) -> str:
    """Return where the engine of metadata is reached from here."""
    try:
        name, host = str(metadata["name"]), str(metadata["host"])
        where, _ = str(metadata["address"]), metadata["identity"]
    except (KeyError, TypeError) as e:
        raise CallError(
            f"metadata={metadata!r:.200}; want what `engine.metadata` is there ({e})"
        ) from None
    if is_same_host(host, host_id()):
        return name
    if not where:
        raise RendezvousError(
            f"engine {name!r} is on host {host_name(host)} and does not listen; start "
            "it with listen='HOST:PORT'"
        )
    return where


def _own_address() -> str:
    """Return the address by which this host reaches others; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect(("192.0.2.1", 9))  # an address of no host
        except OSError:
            return socket.gethostname()
        return str(sock.getsockname()[0])


def split(where: str) -> tuple[str, int]:
    """Return the host and port of an address; RendezvousError: it is none."""
    host, _, port = where.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise RendezvousError(f"{where!r} is no address; want HOST:PORT")
    return host.strip("[]"), int(port)


def _reached(job: str, name: str) -> socket.socket:
    """Return a connection to an engine of this host by name, or elsewhere."""
    if ":" in name:
        tls.require()
        try:
            return socket.create_connection(split(name), timeout=5.0)
        except OSError as e:
            raise RendezvousError(f"{name}: {e}") from e
    sock = address.reach(address.socket_path(f"transfer {job} {name}"))
    if sock is None:
        raise RendezvousError(
            f"no engine named {name!r} on this host, of job {job!r}; "
            "start it, or pass the HOST:PORT at which it listens"
        )
    return sock
