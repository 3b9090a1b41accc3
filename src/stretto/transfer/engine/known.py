"""Whom an engine knows: peers by identity, and who is on the way to become one.

An identity is made with its engine and is nobody else's; several engines may have one
name, and one engine several addresses. Two engines are connected once. So who comes
learns first to whom, and says hello only if he neither has nor meets that engine; and
of two that go to each other at once, the one with the smaller identity is let in.

A connection has a name of its own, by which who had lost it is told from who did not
know yet that it is there.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Protocol

from stretto.errors import CallError, EngineLost, RendezvousError
from stretto.transfer.engine.loop import LinkLoop
from stretto.transfer.ways.pending import Pending

_MOST_PLACES = 4096
_FIRST_S, _LAST_S = 0.01, 1.0


class _Meeting(Protocol):
    """A connection whose ends are not peers yet."""

    is_over: bool
    is_comer: bool
    meeting: str
    """The name of the connection."""

    def end(self, why: str) -> None:
        """Hang up."""


class PeerTable:
    """See the module; its owner's lock is held while it is asked or told."""

    def __init__(self, identity: str, lock: Any) -> None:
        self.identity, self._lock = identity, lock
        self._peers: dict[str, Any] = {}
        self._talks: dict[str, _Meeting] = {}
        """Those that are to become peers: one for each identity."""
        self._wanted: dict[str, list[Pending[Any]]] = {}
        self._named: dict[str, list[Pending[Any]]] = {}
        """Who waits for what comes, by name."""
        self._last: dict[str, str] = {}
        """The last connection that there was, or was to be, with each."""
        self._places: dict[str, str] = {}
        """Who was found at a name or an address."""
        self._over: EngineLost | None = None
        """Why nobody comes any more."""

    @property
    def peers(self) -> Mapping[str, Any]:
        """Return the peers that are connected, by identity; some are not yet ready."""
        with self._lock:
            return dict(self._peers)

    def find(self, name: str, found: Pending[Any]) -> None:
        """Hand out the peer of a name, or of an identity, once it has come."""
        with self._lock:
            some = [p for p in self._peers.values() if name in (p.name, p.identity)]
            over = self._over
            if not some and over is None:
                self._named.setdefault(name, []).append(found)
        if len(some) > 1:
            said = ", ".join(f"{p.identity} ({p.whereabouts})" for p in some)
            why = f"{len(some)} peers are named {name!r}; pass an identity: {said}"
            found.fail(CallError(why))
        elif some:
            hand_out(some[0], found)
        elif over is not None:
            found.fail(over)

    def end(self, why: EngineLost) -> None:
        """Have nobody wait for who will not come."""
        with self._lock:
            self._over = why
            waiting = [one for some in self._named.values() for one in some]
            self._named.clear()
        for found in waiting:
            found.fail(why)

    def at(self, place: str) -> Any:
        """Return the peer that was found at a name or an address, if it is there."""
        peer = self._peers.get(self._places.get(place, ""))
        return None if peer is None or peer.lost else peer

    def last(self, identity: str) -> str:
        """Return the last connection with an engine, or nothing."""
        return self._last.get(identity, "")

    # Talks, in the engine's thread.

    def visit(
        self, talk: _Meeting, place: str, identity: str, found: Pending[Any]
    ) -> bool:
        """Have somebody told when an engine is a peer; return whether to say hello."""
        if identity == self.identity:
            raise RendezvousError(
                f"{place} is this engine itself; use what it shares without a peer"
            )
        with self._lock:
            if len(self._places) >= _MOST_PLACES:
                self._places.clear()
            self._places[place] = identity
            known = self._peers.get(identity)
            if known is not None and not known.lost:
                hand_out(known, found)
                return False
            self._wanted.setdefault(identity, []).append(found)
            if self._is_met(identity):
                return False
            self._talks[identity] = talk
        return True

    def admit(self, talk: _Meeting, identity: str, after: str) -> tuple[bool, Any]:
        """Return whether to let somebody in who says hello; and the peer it was.

        `after` is the last connection that he knows of.
        """
        with self._lock:
            known, other = self._peers.get(identity), self._talks.get(identity)
            if known is not None and not known.lost and known.meeting != after:
                return False, None
            if other is not None and not other.is_over:
                we_go = other.is_comer and self.identity < identity
                if we_go or (not other.is_comer and other.meeting != after):
                    return False, None
            self._talks[identity] = talk
        if other is not None and not other.is_comer:
            other.end("it has come again")
        return True, known

    def left(self, talk: _Meeting, identity: str, error: Exception | None) -> None:
        """Forget a talk that came to nothing; whoever waits for it hears of an error.

        Without one there is another connection, or soon will be.
        """
        with self._lock:
            if self._talks.get(identity) is not talk:
                return
            del self._talks[identity]
            self._last[identity] = talk.meeting
        if error is not None:
            self.give_up(identity, error)

    def give_up(self, identity: str, error: Exception) -> None:
        """Have nobody wait for an engine, unless it is a peer by now, or is met."""
        with self._lock:
            known = self._peers.get(identity)
            if self._is_met(identity) or (known is not None and not known.lost):
                return
            wanted = self._wanted.pop(identity, [])
        for found in wanted:
            found.fail(error)

    def _is_met(self, identity: str) -> bool:
        talk = self._talks.get(identity)
        return talk is not None and not talk.is_over

    def forget(self, lock: Any) -> list[Any]:
        """Know nobody any more, in a forked child; return who was known."""
        peers, self._lock = list(self._peers.values()), lock
        self._peers.clear()
        self._talks.clear()
        return peers

    # Peers.

    def welcome(self, peer: Any) -> None:
        """Know a peer; whoever wants it gets it when it is ready."""
        with self._lock:
            self._peers[peer.identity] = peer
            self._talks.pop(peer.identity, None)
            wanted = self._wanted.pop(peer.identity, [])
        for found in wanted:
            hand_out(peer, found)
        peer.ready.then(lambda: self._is_here(peer))

    def _is_here(self, peer: Any) -> None:
        if peer.lost:
            return
        with self._lock:
            keys = peer.name, peer.identity
            wanted = [one for key in keys for one in self._named.pop(key, [])]
        for found in wanted:
            found.finish(peer)

    def drop(self, peer: Any) -> None:
        """Know a peer no more."""
        identity, meeting = str(peer.identity), str(peer.meeting)
        with self._lock:
            if self._peers.get(identity) is not peer:
                return
            del self._peers[identity]
            while len(self._last) >= _MOST_PLACES:
                del self._last[next(iter(self._last))]
            self._last[identity] = meeting


def hand_out(peer: Any, found: Pending[Any]) -> None:
    """Hand out a peer when it is ready; if it is lost before, that is the error."""

    def ready() -> None:
        if peer.lost:
            found.fail(peer.error())
        else:
            found.finish(peer)

    peer.ready.then(ready)


class LostPeers:
    """Lost peers that may still write to our memory, until they have left or died.

    Whoever takes memory back waits for them; they are looked at ever more seldom.
    """

    def __init__(self, loop: LinkLoop, lock: Any) -> None:
        self._loop, self.lock = loop, lock
        self._peers: list[Any] = []
        self._delay = _FIRST_S
        self._is_looking = False

    @property
    def peers(self) -> list[Any]:
        """Return those that may still write."""
        with self.lock:
            return list(self._peers)

    def add(self, peer: Any) -> None:
        """Keep a peer that is lost; `look` lets it go."""
        with self.lock:
            self._peers.append(peer)
            self._delay = _FIRST_S

    def look(self) -> None:
        """Let go those that write no more; look again while there are others."""
        with self.lock:
            over = [peer for peer in self._peers if peer.writes_no_more]
            self._peers = [peer for peer in self._peers if peer not in over]
            again = bool(self._peers) and not self._is_looking
            self._is_looking |= again
        for peer in over:
            peer.let_go()
        if again:
            self._delay = min(2 * self._delay, _LAST_S)
            self._loop.at(time.monotonic() + self._delay, self._look_again)

    def _look_again(self) -> None:
        self._is_looking = False
        self.look()
