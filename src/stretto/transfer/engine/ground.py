"""What an engine's parts stand on: its thread, its counts, its memory and its peers."""

from __future__ import annotations

import secrets
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from stretto.fabric.across import Witness
from stretto.fabric.secret import load_secret
from stretto.transfer.engine.counts import Counts
from stretto.transfer.engine.known import LostPeers, PeerTable
from stretto.transfer.engine.loop import LinkLoop
from stretto.transfer.engine.topics import Topics
from stretto.transfer.links.counterpart import Counterpart
from stretto.transfer.regions.leases import Leases
from stretto.transfer.regions.shelf import Shelf

if TYPE_CHECKING:
    from stretto.transfer.ways.gpu import Gpu
    from stretto.transfer.ways.stored import Helpers


class Ground(ABC):
    """See the module; `Engine` is what users have of it."""

    def __init__(
        self, name: str, *, job: str, secret: bytes | None, hop: str, spin_us: float,
        lanes: int, rails: Sequence[str],
    ) -> None:  # fmt: skip
        self.name, self.job, self.hop, self._secret = name, job, hop, secret
        self.rails, self.lanes = tuple(rails), max(lanes, len(rails))
        self.lock: Any = threading.RLock()
        self.counts = Counts()
        self.witness = Witness()
        self.loop = LinkLoop(name, spin_us)
        self.known = PeerTable(secrets.token_hex(16), self.lock)
        """The peers; and what tells this engine from all others."""
        self.gone = LostPeers(self.loop, self.lock)
        self.topics = Topics(self.loop, self._present)
        self.leases = Leases(self._writers)
        self.board = self.leases.board
        self.shelf = Shelf(self, self.lock, self.leases, self._present)
        self._gpu: Gpu | None = None
        self._helpers: Helpers | None = None

    @abstractmethod
    def start(self, src: Any, dst: Any, **how: Any) -> Any:
        """Begin a transfer."""

    @abstractmethod
    def prepare(self, src: Any, dst: Any, **how: Any) -> Any:
        """Prepare a transfer."""

    def secret(self) -> bytes:
        """Return what engines of the job know, and nobody else."""
        if self._secret is None:
            self._secret = load_secret()
        return self._secret

    # Peers.

    def _present(self) -> list[Any]:
        return list(self.known.peers.values())

    def _writers(self) -> list[Any]:
        with self.lock:
            return [*self._present(), *self.gone.peers]

    def welcome(self, peer: Any) -> None:
        """Know a peer, and tell it what is shared here."""
        with self.lock:  # what is shared meanwhile is told once
            self.known.welcome(peer)
            self.loop.add(peer)
            self.shelf.show(peer)
        peer.tell({"say": "ready"})

    def drop(self, peer: Counterpart) -> None:
        """Drop a peer that is lost."""
        numbers = peer.descriptors
        with self.lock:
            self.known.drop(peer)
            self.gone.add(peer)
        self.loop.remove(peer)  # type: ignore[arg-type]

        def unregister() -> None:
            for number in numbers:
                self.loop.unwatch(number)

        self.loop.call(unregister)
        self.loop.call(self.gone.look)

    # What is made when it is first needed.

    @property
    def has_gpu(self) -> bool:
        """Return whether the GPU of this process is used."""
        return self._gpu is not None

    @property
    def gpu(self) -> Gpu:
        """Return the GPU of this process."""
        if self._gpu is None:
            from stretto.transfer.ways.gpu import Gpu  # who has none does not pay

            self._gpu = Gpu(self.loop, self.lock, self.shelf, self.leases)
        return self._gpu

    @property
    def helpers(self) -> Helpers:
        """Return the threads that read and write stores."""
        if self._helpers is None:
            from stretto.transfer.ways.stored import Helpers

            self._helpers = Helpers()
        return self._helpers

    def close(self) -> None:
        """Give back what it holds."""
        if self._helpers is not None:
            self._helpers.close()
        if self._gpu is not None:
            self._gpu.close()
        self.shelf.close()
        self.board.shared.close()
