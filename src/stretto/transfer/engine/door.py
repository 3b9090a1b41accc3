"""Where others come to an engine, and from where it goes to them."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from stretto.errors import CallError, RendezvousError
from stretto.fabric import address, tls
from stretto.fabric.handshake import Handshake
from stretto.fabric.hosts import host_name, is_same_host
from stretto.fabric.loop import Loop
from stretto.fabric.patience import DIAL_S
from stretto.fabric.porch import Entry, Knock, Porch
from stretto.fabric.process import (
    host_id,
    peer_uid,
    uid_refusal,
)
from stretto.transfer.engine.ground import Ground
from stretto.transfer.engine.known import hand_out
from stretto.transfer.engine.meet import PURPOSE, Talk
from stretto.transfer.engine.peer import Peer
from stretto.transfer.ways.pending import Pending

_CLOSES = "this engine closes"
_Reached = tuple[str, socket.socket, Pending[Peer]]


class EngineDoor:
    """Where others come to an engine, and from where it goes to them."""

    def __init__(self, engine: Ground, listen: str | None) -> None:
        self._engine = engine
        self.path = _path(engine.job, engine.name)
        near = address.listen(self.path)
        self._inode = self.path.lstat().st_ino
        self.address = ""
        far: list[socket.socket] = []
        if listen is not None:
            tls.require()
            host, port = split(listen)
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            try:
                far.append(socket.create_server((host, port), family=family))
            except (OSError, UnicodeError) as e:
                near.close()
                raise RendezvousError(f"cannot listen at {listen}: {e}") from e
            self.address = f"{host}:{far[0].getsockname()[1]}"
        self._talks: list[Talk | Knock] = []
        """With who is on his way to us, and to whom we are."""
        self._reached: list[_Reached] = []
        self._is_closed = False
        self._loop = cast(Loop, engine.loop)
        self._entry = Entry(self._loop, near, self._take_near)
        self._porch = Porch(
            self._loop, far, lambda: self._shake(comes=False), self._let_in
        )

    def _shake(self, *, comes: bool) -> Handshake:
        says = {"identity": self._engine.known.identity}
        return Handshake(self._engine.secret(), PURPOSE, says, comes=comes)

    def _take_near(self, sock: socket.socket, source: str) -> None:
        if uid_refusal(peer_uid(sock), os.getuid()):
            sock.close()
        else:
            self._keep(Talk(self._engine, sock, is_comer=False))

    def _let_in(self, knock: Knock) -> None:
        self._keep(Talk(self._engine, knock.sock, is_comer=False, proved=knock))

    def _keep(self, talk: Talk | Knock) -> None:
        self._talks = [*(one for one in self._talks if not one.is_over), talk]

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

        def talk(sock: socket.socket, proved: Knock | None = None) -> None:
            made = Talk(
                self._engine, sock, is_comer=True, proved=proved, found=found, name=name
            )
            self._keep(made)

        def met(knock: Knock) -> None:
            talk(knock.sock, knock)

        def refused(knock: Knock) -> None:
            found.fail(RendezvousError(f"engine {name!r}: {knock.why}"))

        try:
            if ":" not in name:
                talk(sock)
                return
            shake, source = self._shake(comes=True), str(sock.getpeername()[0])
            sock = tls.secured(sock, server=False)
            self._keep(
                Knock(self._loop, sock, shake, met=met, refused=refused, source=source)
            )
        except (OSError, RendezvousError) as e:
            sock.close()
            how_it_ended = "it hung up: " * isinstance(e, OSError)
            found.fail(RendezvousError(f"engine {name!r}: {how_it_ended}{e}"))

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
        for _, sock, _ in self._reached:
            sock.close()
        for one in (self._entry, self._porch, *self._talks):
            one.forget()

    def close(self, peers: Mapping[str, Peer]) -> None:
        """Let nobody in any more, and go to nobody; lose who has come meanwhile."""
        self._is_closed = True
        self._entry.close()
        self._porch.close()
        for reached in list(self._reached):
            self._turn_back(reached)
        for talk in self._talks:
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


def _path(job: str, name: str) -> Path:
    return address.socket_path(f"{job}@transfer {name}")


def _reached(job: str, name: str) -> socket.socket:
    """Return a connection to an engine of this host by name, or elsewhere."""
    if ":" in name:
        tls.require()
        try:
            return socket.create_connection(split(name), timeout=DIAL_S)
        except OSError as e:
            raise RendezvousError(f"{name}: {e}") from e
    sock = address.reach(_path(job, name))
    if sock is None:
        raise RendezvousError(
            f"no engine named {name!r} on this host, of job {job!r}; "
            "start it, or pass the HOST:PORT at which it listens"
        )
    return sock
