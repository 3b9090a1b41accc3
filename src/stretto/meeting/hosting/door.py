"""The front door on TCP: who knows the secret is shown to the Unix socket.

    hub: Challenge(nonce)   rank: Proof(nonce, mac, host)   hub: Moved(path, mac, host)

Whoever does not know it is told so. Those who only stand there are sent away: by a
timer, and the oldest of the address that has most of them when there are too many.
A rank on another host that offers to relay for all ranks there is kept (`Wing`).
"""

from __future__ import annotations

import selectors
import socket
import time
from dataclasses import dataclass, replace
from functools import partial

from stretto.errors import CollectiveTimeout, RendezvousError, is_interruption
from stretto.meeting import messages, tls
from stretto.meeting.faults import Fault
from stretto.meeting.hosting.events import (
    TurnedAway,
)
from stretto.meeting.hosting.hub import Hub
from stretto.meeting.hosting.wing import Wing
from stretto.meeting.messages import Challenge, Message, Moved, Proof, Verdict
from stretto.meeting.process import host_id, is_same_host
from stretto.meeting.reaching import why_not_reached, why_not_served
from stretto.meeting.secret import is_proof, new_nonce, prove
from stretto.meeting.strangers import first_to_go
from stretto.meeting.wire import Connection, Refused, wait_ready

ANSWER_S = 5.0
MOST_KNOCKING = 128
_PAUSE_S = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class _Knock:
    nonce: str
    address: str
    until: float


class Door:
    """Show ranks that come over TCP to `path`; part of the hub's loop."""

    def __init__(
        self,
        hub: Hub,
        address: tuple[str, int],
        path: str,
        secret: bytes,
        listener: socket.socket | None = None,
    ) -> None:
        """Listen at an address, unless somebody did."""
        tls.require()
        self._hub, self._path, self._secret = hub, path, secret
        self._knocking: dict[Connection, _Knock] = {}
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        try:
            self._listener = listener or socket.create_server(
                address, family=family, backlog=128
            )
        except (OSError, UnicodeError) as e:
            raise RendezvousError(why_not_served(address, e)) from e
        self._listener.setblocking(False)
        hub.selector.register(self._listener, selectors.EVENT_READ, self._accept)
        hub.enter(self)

    @property
    def next_deadline(self) -> float | None:
        """When the first of those who stand there has done so for long enough."""
        return min((k.until for k in self._knocking.values()), default=None)

    def tick(self, now: float) -> None:
        """Send away who has not answered."""
        for connection, knock in list(self._knocking.items()):
            if knock.until <= now:
                self._give_up(connection, knock)

    def close(self, fault: Fault | None) -> None:
        """Open to nobody any more; those who stand there will find out why."""
        for connection in list(self._knocking):
            self._hang_up(connection)
        self._hub.selector.unregister(self._listener)
        self._listener.close()

    def forget(self) -> None:
        """Close this process's descriptors."""
        for connection in self._knocking:
            connection.close()
        self._listener.close()

    def _accept(self) -> None:
        try:
            sock, address = self._listener.accept()
        except OSError:  # gone again, or no descriptor is left: somebody must go
            self._drop_one()
            return
        if len(self._knocking) >= MOST_KNOCKING:
            self._drop_one()
        try:
            connection = Connection(tls.secured(sock, server=True))
        except OSError:  # it has hung up already, or spoke before TLS did
            sock.close()
            return
        nonce = new_nonce()
        until = time.monotonic() + ANSWER_S
        where = str(address[0])
        self._knocking[connection] = _Knock(nonce=nonce, address=where, until=until)
        self._hub.selector.register(
            connection, selectors.EVENT_READ, partial(self._answer, connection)
        )
        self._say(connection, Challenge(nonce=nonce))

    def _drop_one(self) -> None:
        """Send away the oldest of the address that most have come from."""
        of = {one: knock.address for one, knock in self._knocking.items()}
        if (goes := first_to_go(of)) is not None:
            self._hang_up(goes)
        else:
            time.sleep(1e-3)  # so that a process without descriptors does not spin

    def _answer(self, connection: Connection) -> None:
        knock = self._knocking.get(connection)
        if knock is None:
            return
        try:
            self._hear_out(connection, knock)
        except (EOFError, OSError):
            self._give_up(connection, knock)
        except Exception as e:  # the hub serves others, too
            if is_interruption(e):
                raise
            self._hang_up(connection)

    def _hear_out(self, connection: Connection, knock: _Knock) -> None:
        frames = connection.receive()
        if not frames:
            return
        proof = messages.read(frames[0])
        if isinstance(proof, Proof):
            said = (knock.nonce, proof.nonce, proof.host, str(proof.stays))
            if is_proof(proof.mac, self._secret, "rank", *said):
                self._show_in(connection, knock.nonce, proof)
                is_here = connection in self._knocking  # it may have gone meanwhile
                if is_here and proof.stays and not is_same_host(host_id(), proof.host):
                    self._knocking.pop(connection)
                    self._hub.selector.unregister(connection)
                    Wing(self._hub, connection, proof.host, frames[1:])
                    return
            else:
                self._turn_away(connection, knock.address)
        self._hang_up(connection)

    def _show_in(self, connection: Connection, nonce: str, proof: Proof) -> None:
        here = host_id()
        said = (nonce, proof.nonce, self._path, here)
        mac = prove(self._secret, "hub", *said)
        self._say(connection, Moved(mac=mac, host=here, path=self._path))

    def _give_up(self, connection: Connection, knock: _Knock) -> None:
        """Hang up on one that went, or said nothing; the hub hears if it was TLS."""
        if why := tls.reason(connection):
            who = f"somebody at {knock.address}"
            self._hub.feed(TurnedAway(who=who, why=f"failed, {why}"))
        self._hang_up(connection)

    def _turn_away(self, connection: Connection, address: str) -> None:
        text = "rank 0 has another secret; give all ranks the same file"
        verdict = Verdict(group="", error="RendezvousError", text=text, blamed=())
        self._say(connection, verdict)
        why = "it has another secret; give all ranks the same file"
        self._hub.feed(TurnedAway(who=f"somebody at {address}", why=why))

    def _say(self, connection: Connection, message: Message) -> None:
        try:
            connection.post(messages.to_body(message))
        except OSError:
            self._hang_up(connection)

    def _hang_up(self, connection: Connection) -> None:
        if self._knocking.pop(connection, None) is not None:
            self._hub.selector.unregister(connection)
            connection.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the hub behind a door says of itself."""

    host: str
    path: str
    """The Unix socket that it serves on its host."""
    connection: Connection | None = None
    """The connection to it, where it is on another host and we are to relay."""


def knock(
    address: tuple[str, int], secret: bytes, until: float, *, stays: bool = False
) -> Answer | None:
    """Return where the hub behind the door is.

    None when nobody answered, or hung up in the midst: try again, until it is late.
    """
    where = f"{address[0]}:{address[1]}"
    try:
        left_s = min(1.0, max(0.01, until - time.monotonic()))
        sock = socket.create_connection(address, timeout=left_s)
        connection = Connection(tls.secured(sock, server=False))
    except (OSError, UnicodeError):
        time.sleep(_PAUSE_S)
        return None
    kept = False
    try:
        answer = _ask(connection, where, secret, until, stays)
        if answer is None and (why := tls.reason(connection)):
            raise RendezvousError(f"{where}: {why}")
        kept = stays and answer is not None
        if answer is not None and kept and not is_same_host(host_id(), answer.host):
            return replace(answer, connection=connection)
        kept = False
        return answer
    finally:
        if not kept:
            connection.close()


def _ask(
    connection: Connection, where: str, secret: bytes, until: float, stays: bool
) -> Answer | None:
    challenge = _hear(connection, where, until)
    if challenge is None:
        return None
    if not isinstance(challenge, Challenge):
        raise RendezvousError(f"{where} is not a stretto rendezvous")
    nonce, here = new_nonce(), host_id()
    mac = prove(secret, "rank", challenge.nonce, nonce, here, str(int(stays)))
    proof = Proof(nonce=nonce, mac=mac, host=here, stays=int(stays))
    try:
        connection.post(messages.to_body(proof))
    except OSError:
        return None
    moved = _hear(connection, where, until)
    if moved is None:
        return None
    if isinstance(moved, Verdict):
        raise RendezvousError(f"{where}: {moved.text}")
    if not isinstance(moved, Moved):
        raise RendezvousError(f"{where} is not a stretto rendezvous")
    said = (challenge.nonce, nonce, moved.path, moved.host)
    if not is_proof(moved.mac, secret, "hub", *said):
        raise RendezvousError(f"{where} does not know the secret; is it another job's?")
    return Answer(host=moved.host, path=moved.path)


def nobody_answers(address: tuple[str, int], timeout_s: float) -> CollectiveTimeout:
    """Return the error of a rank that was not let in before its deadline."""
    why = why_not_reached(address)
    error = CollectiveTimeout(
        f"rank 0 did not come within {timeout_s:g} s: nobody answers at "
        f"{address[0]}:{address[1]} as rank 0 of a stretto job does{why and ': '}{why};"
        " read its log, or allow more time with deadline_s"
    )
    error.blamed = (0,)
    return error


def _hear(connection: Connection, where: str, until: float) -> Message | None:
    """Return what the other end says; None when it hangs up or keeps silent."""
    until = min(until, time.monotonic() + ANSWER_S)
    while (left_s := until - time.monotonic()) > 0:
        wait_ready(connection, left_s)
        try:
            frames = connection.receive()
        except (EOFError, OSError):
            time.sleep(min(_PAUSE_S, max(0.0, until - time.monotonic())))
            return None
        if frames:
            heard = messages.read(frames[0])
            if isinstance(heard, Refused):
                text = f"{where} is not a stretto rendezvous: {heard.why}"
                raise RendezvousError(text)
            return heard
    return None
