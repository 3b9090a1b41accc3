"""Peers by the place where a request says that they are."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable

from stretto.errors import RendezvousError, StrettoError
from stretto.meeting.process import host_id, is_same_host
from stretto.transfer.connector.steps import Place
from stretto.transfer.engine.engine import Engine
from stretto.transfer.engine.peer import Peer
from stretto.transfer.ways.pending import Pending

__all__ = ["Peers", "Reaching"]


class Reaching:
    """A peer that is being reached: by its name on this host, else by its address."""

    def __init__(self, engine: Engine, place: Place) -> None:
        self._engine, self._place = engine, place
        self.peer: Peer | None = None
        self.error: StrettoError | None = None
        self._then: list[Callable[[Peer], None]] = []
        self._lock, self._ended = threading.Lock(), threading.Event()
        near = not place.host or is_same_host(place.host, host_id())
        names = [place.name if near else "", place.address]
        self._left = [name for name in names if name] or [place.name]
        self._go_on(RendezvousError(f"engine {str(place)!r}: it has no address"))

    def _go_on(self, error: StrettoError) -> None:
        while self._left:
            name = self._left.pop(0)
            try:
                found = self._engine.connect(name)
            except StrettoError as e:
                error = e
                continue
            found.then(functools.partial(self._heard, found))
            return
        self._end(None, error)

    def _heard(self, found: Pending[Peer]) -> None:
        try:
            peer = found.wait(0)
        except StrettoError as e:
            self._go_on(e)
        else:
            self._end(peer, None)

    def _end(self, peer: Peer | None, error: StrettoError | None) -> None:
        with self._lock:
            self.peer, self.error = peer, error
            then, self._then = self._then, []
            self._ended.set()
        if peer is not None:
            for call in then:
                _tell(call, peer)

    def then(self, call: Callable[[Peer], None]) -> None:
        """Call something with the peer, when it is reached; never, when it is not."""
        with self._lock:
            if not self._ended.is_set():
                self._then.append(call)
                return
        if self.peer is not None:
            _tell(call, self.peer)

    def found(self) -> Peer | None:
        """Return the peer, or None: not yet. It raises what went wrong."""
        if self.error is not None:
            raise self.error
        return self.peer

    def wait(self, timeout: float) -> Peer:
        """Return the peer within so many seconds."""
        if not self._ended.wait(timeout):
            raise RendezvousError(f"engine {str(self._place)!r}: not in {timeout:g} s")
        found = self.found()
        assert found is not None, "it has ended, and well"
        return found

    @property
    def is_of_use(self) -> bool:
        """Return whether it is not over."""
        return self.error is None and not (self.peer is not None and self.peer.lost)


def _tell(call: Callable[[Peer], None], peer: Peer) -> None:
    try:
        call(peer)
    except StrettoError:
        return  # who is gone needs no word


class Peers:
    """Those that were reached once are not connected with again."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._known: dict[Place, Reaching] = {}

    def reach(self, place: Place) -> Reaching:
        """Return a peer that is, or is being, reached."""
        known = self._known.get(place)
        if known is None or not known.is_of_use:
            known = self._known[place] = Reaching(self._engine, place)
        return known
