"""The front door on TCP: who knows the secret is shown to the Unix socket.

Both ends shake hands (`fabric.handshake`): a rank says on which host it is, the door
where the hub is. Whoever does not know the secret is told so; those who only stand
there are sent away (`fabric.porch`). A rank on another host that offers to relay for
all ranks there is kept (`Wing`).
"""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass, replace

from stretto.errors import CollectiveTimeout, RendezvousError
from stretto.fabric import tls
from stretto.fabric.events import TurnedAway
from stretto.fabric.faults import Fault
from stretto.fabric.handshake import Handshake
from stretto.fabric.hosts import is_same_host
from stretto.fabric.loop import Loop
from stretto.fabric.meeting.hosting.hub import Hub
from stretto.fabric.meeting.hosting.wing import Wing
from stretto.fabric.meeting.reaching import why_not_reached, why_not_served
from stretto.fabric.patience import STRANGER_S
from stretto.fabric.porch import Knock, Porch
from stretto.fabric.process import host_id
from stretto.fabric.wire import Connection

_PURPOSE = "meeting 2"
_PAUSE_S = 0.02


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
        self._hub = hub
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        try:
            listener = listener or socket.create_server(
                address, family=family, backlog=128
            )
        except (OSError, UnicodeError) as e:
            raise RendezvousError(why_not_served(address, e)) from e
        says = {"host": host_id(), "path": path}

        def shake() -> Handshake:
            return Handshake(secret, _PURPOSE, says, comes=False)

        self._porch = Porch(
            hub.loop, [listener], shake, self._let_in, turned_away=self._turned_away
        )
        hub.enter(self)

    def close(self, fault: Fault | None) -> None:
        """Open to nobody any more; those who stand there will find out why."""
        self._porch.close()

    def forget(self) -> None:
        """Close this process's descriptors."""
        self._porch.forget()

    def _let_in(self, knock: Knock) -> None:
        """Keep who relays for another host; the others know now where to go."""
        assert knock.shake.theirs is not None, "it is proved"
        stays, host = knock.shake.theirs.get("stays"), knock.shake.theirs.get("host")
        if stays and not is_same_host(host_id(), str(host)):
            Wing(self._hub, Connection(knock.sock), str(host))
        else:
            knock.sock.close()

    def _turned_away(self, knock: Knock) -> None:
        """Tell the hub of who may have been a rank; silent ones say nothing of it."""
        if not knock.hung_up:
            who = f"somebody at {knock.source}"
            self._hub.feed(TurnedAway(who=who, why=knock.why))


@dataclass(frozen=True, slots=True, kw_only=True)
class HubPlace:
    """What the hub behind a door says of itself."""

    host: str
    path: str
    """The Unix socket that it serves on its host."""
    connection: Connection | None = None
    """The connection to it, where it is on another host and we are to relay."""


def knock(
    address: tuple[str, int], secret: bytes, until: float, *, stays: bool = False
) -> HubPlace | None:
    """Return where the hub behind the door is.

    None when nobody answered, or hung up in the midst: try again, until it is late.
    """
    where = f"{address[0]}:{address[1]}"
    says: dict[str, str | int] = {"host": host_id(), "stays": int(stays)}
    shake = Handshake(secret, _PURPOSE, says, comes=True)
    try:
        left_s = min(1.0, max(0.01, until - time.monotonic()))
        sock = socket.create_connection(address, timeout=left_s)
        ended = _knocked(tls.secured(sock, server=False), shake, until)
    except (OSError, UnicodeError):
        ended = None
    if ended is None:
        time.sleep(min(_PAUSE_S, max(0.0, until - time.monotonic())))
        return None
    theirs = shake.theirs
    if theirs is None:
        raise RendezvousError(f"rank 0 at {where}: {ended.why}")
    answer = HubPlace(host=str(theirs.get("host")), path=str(theirs.get("path")))
    if stays and not is_same_host(host_id(), answer.host):
        return replace(answer, connection=Connection(ended.sock))
    ended.sock.close()
    return answer


def _knocked(sock: socket.socket, shake: Handshake, until: float) -> Knock | None:
    """Return a connection that is proved or refused; None: there is none to speak of.

    Who is sent away because he was late, or one of too many, may come again.
    """
    ended: list[Knock] = []
    until = min(until, time.monotonic() + STRANGER_S)
    loop = Loop()
    try:
        one = Knock(loop, sock, shake, met=ended.append, refused=ended.append)
        while not ended and (left_s := until - time.monotonic()) > 0:
            loop.step(left_s)
        is_said = bool(ended) and not one.hung_up
        one.end("it has not answered")
    finally:
        loop.close()
    return one if is_said and shake.word not in ("late", "full") else None


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
