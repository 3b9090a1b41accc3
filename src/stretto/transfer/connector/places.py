"""Peers by the place where a request says that they are."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from contextlib import suppress

from stretto.errors import RendezvousError, StrettoError
from stretto.fabric.hosts import is_same_host
from stretto.fabric.process import host_id
from stretto.transfer.connector.steps import EnginePlace
from stretto.transfer.engine.engine import Engine
from stretto.transfer.engine.peer import Peer
from stretto.transfer.ways.pending import Pending


class Reaching(Pending[Peer]):
    """A peer that is being reached: by its name on this host, else by its address."""

    def __init__(self, engine: Engine, place: EnginePlace) -> None:
        super().__init__(engine.loop, f"engine {str(place)!r}")
        self._engine = engine
        near = not place.host or is_same_host(place.host, host_id())
        names = [place.name if near else "", place.address]
        self._left = [name for name in names if name] or [place.name]
        self._go_on(RendezvousError(f"{self.what}: it has no address"))

    def _go_on(self, error: BaseException) -> None:
        while self._left:
            try:
                found = self._engine.connect(self._left.pop(0))
            except StrettoError as e:
                error = e
                continue
            found.then(functools.partial(self._heard, found))
            return
        self.fail(error)

    def _heard(self, found: Pending[Peer]) -> None:
        if found.error is not None:
            self._go_on(found.error)
        else:
            self.finish(found.wait(0))

    @property
    def is_of_use(self) -> bool:
        """Return whether it is not over."""
        return self.error is None and not (self._result and self._result.lost)


class Peers:
    """Those that were reached once are not connected with again."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._known: dict[EnginePlace, Reaching] = {}

    def reach(self, place: EnginePlace) -> Reaching:
        """Return a peer that is, or is being, reached."""
        known = self._known.get(place)
        if known is None or not known.is_of_use:
            known = self._known[place] = Reaching(self._engine, place)
        return known

    def tell(self, place: EnginePlace, tags: Sequence[bytes]) -> None:
        """Notify who is there, when he is reached: who is gone needs no word."""
        reaching = self.reach(place)

        def notify() -> None:
            with suppress(StrettoError):
                peer = reaching.wait(0)
                for tag in tags:
                    peer.notify(tag)

        reaching.then(notify)
