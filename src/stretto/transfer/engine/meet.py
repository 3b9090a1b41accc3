"""How engines meet: by name on one host, by address and the job's secret elsewhere.

    server: here, with its identity
    comer:  hello, with memory for the link     server: welcome, or crossed
    both:   arenas, what is shared, ready

Over TCP a handshake (`fabric.handshake`) comes first, in which both say their identity
instead; later their hop connects. Who finds that he knows the server hangs up.
Whoever says something else, or nothing, is hung up on.
"""

from __future__ import annotations

import os
import secrets
import select
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from stretto.errors import RendezvousError, StrettoError, is_interruption
from stretto.fabric import hop as hops
from stretto.fabric.across import admit, why_not
from stretto.fabric.channel import window_of
from stretto.fabric.loop import Timer
from stretto.fabric.memory import Shared
from stretto.fabric.patience import CROSSED_S, HOP_S, STRANGER_S
from stretto.fabric.porch import Knock
from stretto.fabric.process import open_pidfd
from stretto.fabric.wire import Connection, Descriptor, Frame, Refused
from stretto.transfer.engine.ground import Ground
from stretto.transfer.engine.peer import Peer
from stretto.transfer.links.fields import Fields
from stretto.transfer.links.link import Link
from stretto.transfer.links.words import BOTH_BYTES, HALF_BYTES, MOST_FIELDS
from stretto.transfer.memory.board import BOARD_BYTES
from stretto.transfer.ways.pending import Pending

__all__ = ["Talk"]

_ABI = 3
PURPOSE = f"transfer {_ABI}"
_SILENTLY = "it hung up without a word"


class Talk:
    """A connection whose ends are not peers yet; it lives in the loop's thread."""

    def __init__(
        self, engine: Ground, sock: socket.socket, *, is_comer: bool,
        proved: Knock | None = None,
        found: Pending[Peer] | None = None, name: str = "",
    ) -> None:  # fmt: skip
        """Begin; who is far has `proved` who he is."""
        self._engine, self._is_near, self.is_comer = engine, proved is None, is_comer
        self._sock, self._found = sock, found
        self.source = "" if proved is None else proved.source
        self._connection = Connection(sock)
        self.is_over = False
        self.name, self.identity = name, ""
        self.meeting = secrets.token_hex(8) if is_comer else ""
        """The name of this connection, which the comer gives it."""
        self._shared: Shared | None = None
        self._hop: hops.Hop | None = None
        self._connecting = threading.Lock()
        self._fields: Fields | None = None
        self._peer: Peer | None = None
        self._is_meeting = False
        self._later: Sequence[Frame | Refused] = ()
        self._connection.keep_alive()
        self._connection.trust()
        hear = partial(self._attempt, self._hear)
        engine.loop.watch(sock, hear, fault=self._failed)
        self._patience: Timer | None = None
        if not is_comer:
            until = time.monotonic() + STRANGER_S
            self._patience = engine.loop.at(until, self._expire)
        if proved is None and not is_comer:
            here = {"say": "here", **self._here()}
            self._attempt(lambda: self._connection.post(here))
        elif proved is not None and is_comer:
            theirs = {**(proved.shake.theirs or {}), "abi": _ABI}
            self._attempt(lambda: self._is_here(theirs))

    def _expire(self) -> None:
        """Hang up on who has not said what he should by now."""
        if self._hop is None:
            self.end("it said nothing")

    def end(self, why: str) -> None:
        """Hang up, unless they are peers by now."""
        self._leave(RendezvousError(f"engine {self.name!r}: {why}"))

    def _leave(self, error: RendezvousError | None) -> None:
        """Hang up; without an error, because there is another connection."""
        if self.is_over:
            return
        self._end()
        self._connection.close()
        if self._shared is not None:
            self._shared.close()
        if self._hop is not None:  # there it may still be connecting
            self._engine.loop.apart(self._close_hop)
        if self.identity:
            self._engine.known.left(self, self.identity, error)
        if self._found is not None and error is not None:
            self._found.fail(error)

    def _end(self) -> None:
        """Hear nothing more, and let nothing keep this alive."""
        self.is_over = True
        self._engine.loop.unwatch(self._sock)
        if self._patience is not None:
            self._patience.cancel()

    def forget(self) -> None:
        """Close what a child that this process forks has of it; nothing is said."""
        if not self.is_over:
            self.is_over = True
            self._connection.close()

    def _close_hop(self) -> None:
        assert self._hop is not None, "it was opened"
        with self._connecting:
            self._hop.close()

    def _refuse(self, why: str) -> None:
        """Hang up, and say why."""
        if not self.is_over:
            with suppress(OSError, StrettoError):
                self._connection.post({"say": "no", "why": why})
        self.end(why)

    def _attempt(self, task: Callable[[], None]) -> None:
        try:
            task()
        except EOFError:
            self.end(_SILENTLY)
        except Exception as e:
            if is_interruption(e):
                raise
            self._failed(e)

    def _failed(self, error: Exception) -> None:
        known = isinstance(error, StrettoError | ValueError)
        kind = "" if known else f"{type(error).__name__}: "
        self._refuse(f"{kind}{str(error)[:300]}")

    def _hear(self) -> None:
        self._connection.flush()
        frames = self._connection.receive()
        for nth, frame in enumerate(frames):
            if isinstance(frame, Refused):
                raise ValueError(frame.why)
            self._heard(frame.body, list(frame.descriptors))
            if self._peer is not None:
                peer, self._peer = self._peer, None  # it is known elsewhere now
                peer.take_frames(frames[nth + 1 :])
                return
            if self._is_meeting:  # it may be quicker, and say what is for a peer
                self._later = frames[nth + 1 :]
                return

    def _heard(self, said: Mapping[str, Any], fds: list[Descriptor]) -> None:
        what = said.get("say")
        if what == "here" and self.is_comer and self._is_near:
            self._is_here(said)
        elif what == "hello" and not self.is_comer:
            self._welcome(said, fds)
        elif what == "welcome" and self.is_comer and self.identity:
            self._welcomed(said, fds)
        elif what == "crossed" and self.is_comer and self.identity:
            self._crossed()
        elif what == "no":
            self.end(f"it refuses us: {str(said.get('why'))[:300]}")
        else:
            raise ValueError(f"it says {str(what)[:40]!r}")

    # Who they are.

    def _here(self) -> dict[str, Any]:
        return {"identity": self._engine.known.identity, "abi": _ABI}

    def _identify(self, said: Mapping[str, Any]) -> None:
        if said.get("abi") != _ABI:
            raise ValueError(f"its links are of version {said.get('abi')}, ours {_ABI}")
        identity = said["identity"]
        if not isinstance(identity, str) or not 0 < len(identity) <= 64:
            raise ValueError("it has no identity")
        self.identity = identity

    def _is_here(self, said: Mapping[str, Any]) -> None:
        """Say hello, unless the engine that was found is known."""
        self._identify(said)
        found = self._found
        assert found is not None, "somebody wants to go there"
        is_new = self._engine.known.visit(self, self.name, self.identity, found)
        self._found = None  # who is known, or is met, ends it
        if is_new:
            self._hello()
        else:
            self._leave(None)

    def _crossed(self) -> None:
        """Wait for the other engine, which says that it comes, or has come."""
        known, loop, identity = self._engine.known, self._engine.loop, self.identity
        self._leave(None)
        error = RendezvousError(
            f"engine {self.name!r}: it says that it is connected with us already, and "
            "is not; try again"
        )
        until = time.monotonic() + CROSSED_S
        loop.at(until, lambda: known.give_up(identity, error))

    # Hello and welcome.

    def _about(self) -> dict[str, Any]:
        return {
            "name": self._engine.name, "pid": os.getpid(), **self._here(),
            "witness": self._engine.witness.dump(),
        }  # fmt: skip

    def _open_hop(self, rank: int) -> dict[str, Any]:
        self._shared = Shared(BOTH_BYTES)
        fields = Fields()
        window = window_of(
            self._shared, HALF_BYTES, rank, secret=self._engine.secret(),
            towards=self.source, fields=fields.address, num_fields=MOST_FIELDS,
            rails=self._engine.rails, lanes=self._engine.lanes, linger_s=0,
        )  # fmt: skip
        self._hop = hops.get(self._engine.hop).open_hop(window)
        said = self._hop.share()
        self._fields = fields if said["fields"] else None
        return dict(said)

    def _hello(self) -> None:
        after = self._engine.known.last(self.identity)
        names = {"meeting": self.meeting, "after": after}
        body = {"say": "hello", **self._about(), **names}
        fds: list[int] = []
        if self._is_near:
            self._shared = Shared(BOTH_BYTES)
            engine = self._engine
            fds = [self._shared.fd, engine.board.shared.fd, engine.loop.link_bell]
        else:
            body["hop"] = self._open_hop(0)
        self._connection.post(body, [Descriptor(os.dup(fd)) for fd in fds])

    def _check(self, said: Mapping[str, Any]) -> str:
        before = self.identity
        self._identify(said)
        if self.identity != before and self.is_comer:
            raise ValueError("it was another engine a moment ago")
        name = said["name"]
        if not isinstance(name, str) or not 0 < len(name) <= 200:
            raise ValueError("it has no name")
        theirs = self._engine.hop if self._is_near else said["hop"].get("carrier")
        if theirs != self._engine.hop:
            raise ValueError(
                f"it is reached by {str(theirs)[:40]!r}, we by {self._engine.hop!r}; "
                "pass hop= alike"
            )
        return name

    def _welcome(self, said: Mapping[str, Any], fds: list[Descriptor]) -> None:
        self.name = self._check(said)
        self.meeting = str(said["meeting"])[:64]
        engine, body = self._engine, {"say": "welcome", **self._about()}
        may, before = engine.known.admit(self, self.identity, str(said["after"]))
        if not may:
            self._connection.post({"say": "crossed"})
            self._leave(None)
            return
        if before is not None:
            before.lose("it has lost the connection, and has come again")
        if self._is_near:
            memory, board, wake = fds
            self._shared = Shared.of_peer(BOTH_BYTES, memory.take())
            held = [engine.board.shared.fd, engine.loop.link_bell]
            self._connection.post(body, [Descriptor(os.dup(fd)) for fd in held])
            self._near_peer(said, board, wake)
            return
        body["hop"] = self._open_hop(1)
        self._connection.post(body)
        self._far_peer([said["hop"], body["hop"]], 0)

    def _welcomed(self, said: Mapping[str, Any], fds: list[Descriptor]) -> None:
        self.name = self._check(said)
        if self._is_near:
            board, wake = fds
            self._near_peer(said, board, wake)
        else:
            self._far_peer([{}, said["hop"]], 1)

    def _near_peer(
        self, said: Mapping[str, Any], board: Descriptor, wake: Descriptor
    ) -> None:
        assert self._shared is not None, "it came with the hello"
        pid, witness = int(said["pid"]), said["witness"]
        link = Link(self._shared, is_first=self.is_comer, wake=wake)
        admit(pid)
        why = why_not(witness, pid)
        self._become(
            link, pid=pid, pidfd=open_pidfd(pid), reaches=not why, why_not=why,
            board=Shared.of_peer(BOARD_BYTES, board.take()),
        )  # fmt: skip

    def _far_peer(self, shares: list[Any], other: int) -> None:
        self._is_meeting = True
        hop, loop = self._hop, self._engine.loop
        assert hop is not None, "it was opened with the hello"
        if shares[other].get("fields") is not True:
            self._fields = None  # both have them, or neither uses them
        loop.unwatch(self._sock)

        poll = select.poll()
        poll.register(self._sock, select.POLLRDHUP)

        def go_on() -> None:
            if self.is_over or poll.poll(0):
                raise RendezvousError("it hung up while we connected")

        def meet() -> None:
            try:
                with self._connecting:
                    go_on()
                    hop.connect(shares, [other], HOP_S, go_on)
            except (StrettoError, KeyError, TypeError, ValueError, OSError) as e:
                why = str(e) if isinstance(e, StrettoError) else f"{e!r:.300}"
                loop.call(lambda: self._refuse(why))
                return
            loop.call(partial(self._attempt, self._far_met))

        loop.apart(meet)  # it waits for the other, who may wait for a third

    def _far_met(self) -> None:
        if self.is_over:
            return
        assert self._shared is not None, "it was made for the hop"
        link = Link(
            self._shared, is_first=self.is_comer, hop=self._hop, fields=self._fields
        )
        self._become(link).take_frames(self._later)
        self._peer = None

    def _become(self, link: Link, **about: Any) -> Peer:
        """Hand the connection over to a peer."""
        self._end()
        engine, loop = self._engine, self._engine.loop
        if self._shared is not None:
            self._shared.close()  # it is mapped, and was sent
        self._shared = self._fields = self._hop = None  # the link's
        peer = self._peer = Peer(
            engine, self.name, link, self._connection, is_first=self.is_comer,
            address=self.source, identity=self.identity, meeting=self.meeting,
            **about,
        )  # fmt: skip
        for number in peer.descriptors:
            loop.watch(number, partial(peer.hear, 0), fault=partial(_lose, peer))
        engine.welcome(peer)
        return peer


def _lose(peer: Peer, error: Exception) -> None:
    peer.lose(f"what it told makes no sense: {type(error).__name__}: {error}")
