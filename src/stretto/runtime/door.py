"""The front door on TCP: who knows the secret is shown to the Unix socket.

    hub: Challenge(nonce)   rank: Proof(nonce, mac, host)   hub: Moved(path, mac, host)

Ranks of this version share a host, so the door only has to find out that they do.
"""

from __future__ import annotations

import selectors
import socket
import time

from stretto.errors import CollectiveTimeout, RendezvousError, WireError
from stretto.runtime import messages
from stretto.runtime.faults import several_hosts
from stretto.runtime.hub import Hub
from stretto.runtime.messages import Challenge, Message, Moved, Proof
from stretto.runtime.process import host_id, is_same_host
from stretto.runtime.rendezvous import GiveUp
from stretto.runtime.secret import is_proof, new_nonce, prove
from stretto.runtime.wire import Connection, wait_ready

_ANSWER_S = 5.0
_MOST_KNOCKING = 128


class Door:
    """Show ranks that come over TCP to `path`; part of the hub's loop."""

    def __init__(
        self, hub: Hub, address: tuple[str, int], path: str, secret: bytes
    ) -> None:
        self._hub, self._path, self._secret = hub, path, secret
        self._knocking: dict[Connection, tuple[str, float]] = {}
        try:
            self._listener = socket.create_server(address, backlog=128)
        except OSError as e:
            raise RendezvousError(f"cannot serve {address[0]}:{address[1]}: {e}") from e
        self._listener.setblocking(False)
        hub.selector.register(self._listener, selectors.EVENT_READ, self._accept)

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError:
            return
        self._forget_the_slow()
        if len(self._knocking) >= _MOST_KNOCKING:
            sock.close()
            return
        connection, nonce = Connection(sock), new_nonce()
        self._knocking[connection] = (nonce, time.monotonic())
        self._hub.selector.register(
            connection, selectors.EVENT_READ, lambda: self._answer(connection)
        )
        self._say(connection, Challenge(nonce=nonce))

    def _answer(self, connection: Connection) -> None:
        if connection not in self._knocking:
            return
        try:
            frames = connection.receive()
            if not frames:
                return
            proof = messages.from_body(frames[0].body)
        except (EOFError, OSError, WireError):
            self._hang_up(connection)
            return
        nonce, _ = self._knocking[connection]
        if isinstance(proof, Proof) and is_proof(
            proof.mac, self._secret, "rank", nonce, proof.nonce, proof.host
        ):
            self._show_in(connection, nonce, proof)
        self._hang_up(connection)

    def _show_in(self, connection: Connection, nonce: str, proof: Proof) -> None:
        here = host_id()
        said = (nonce, proof.nonce, self._path, here)
        mac = prove(self._secret, "hub", *said)
        self._say(connection, Moved(mac=mac, host=here, path=self._path))
        if not is_same_host(here, proof.host):
            self._hub.feed(GiveUp(fault=several_hosts((here, proof.host))))

    def _say(self, connection: Connection, message: Message) -> None:
        try:
            connection.post(messages.to_body(message))
        except OSError:
            self._hang_up(connection)

    def _forget_the_slow(self) -> None:
        oldest = time.monotonic() - _ANSWER_S
        for connection, (_, since) in list(self._knocking.items()):
            if since < oldest:
                self._hang_up(connection)

    def _hang_up(self, connection: Connection) -> None:
        if self._knocking.pop(connection, None) is not None:
            self._hub.selector.unregister(connection)
            connection.close()


def knock(address: tuple[str, int], secret: bytes, until: float) -> str:
    """Return the path of the Unix socket that the hub behind the door serves."""
    where = f"{address[0]}:{address[1]}"
    connection = _reach(address, until)
    if connection is None:
        raise CollectiveTimeout(f"rank 0 did not come: nobody answers at {where}")
    challenge = _hear(connection, where)
    if not isinstance(challenge, Challenge):
        raise RendezvousError(f"{where} is not a stretto rendezvous")
    nonce, here = new_nonce(), host_id()
    mac = prove(secret, "rank", challenge.nonce, nonce, here)
    connection.post(messages.to_body(Proof(nonce=nonce, mac=mac, host=here)))
    moved = _hear(connection, where)
    connection.close()
    if not isinstance(moved, Moved):
        raise RendezvousError(f"{where} is not a stretto rendezvous")
    said = (challenge.nonce, nonce, moved.path, moved.host)
    if not is_proof(moved.mac, secret, "hub", *said):
        raise RendezvousError(f"{where} does not know the secret; is it another job's?")
    if not is_same_host(here, moved.host):
        raise several_hosts((here, moved.host)).to_error()
    return moved.path


def _reach(address: tuple[str, int], until: float) -> Connection | None:
    while time.monotonic() < until:
        try:
            return Connection(socket.create_connection(address, timeout=1.0))
        except OSError:
            time.sleep(0.02)
    return None


def _hear(connection: Connection, where: str) -> Message:
    until = time.monotonic() + _ANSWER_S
    while (left_s := until - time.monotonic()) > 0:
        wait_ready(connection, left_s)
        try:
            frames = connection.receive()
        except (EOFError, OSError) as e:
            text = f"{where} hung up; does it have another secret?"
            raise RendezvousError(text) from e
        if frames:
            return messages.from_body(frames[0].body)
    raise RendezvousError(f"{where} does not answer like a stretto rendezvous")
