"""An engine: what this process shares, whom it knows, and what it moves."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from stretto.errors import CallError, EngineLost, MissingExtraError
from stretto.fabric.forks import forget_in_children
from stretto.fabric.hop import MOST_LANES
from stretto.fabric.variables import text_of
from stretto.transfer.engine.counts import Notified
from stretto.transfer.engine.door import EngineDoor, metadata_of
from stretto.transfer.engine.ground import Ground
from stretto.transfer.engine.peer import Peer
from stretto.transfer.engine.start import prepare, start
from stretto.transfer.engine.topics import Follows
from stretto.transfer.layouts import Layout
from stretto.transfer.loader import functions
from stretto.transfer.memory.tensors import STORE
from stretto.transfer.regions.leases import Lease
from stretto.transfer.regions.region import Region
from stretto.transfer.ways.paths import lacks
from stretto.transfer.ways.pending import Closes, Pending
from stretto.transfer.ways.transfer import PreparedTransfer, Stats, Transfer, all_of

if TYPE_CHECKING:
    from stretto.transfer.stores.store import Store
    from stretto.transfer.ways.gpu import EnqueuedCopies, Passing

_LONGEST_SPIN_US = 1_000_000


def _wrong(
    listen: Any, job: Any, secret: Any, spin_us: Any, lanes: Any, rails: Any
) -> str:
    """Return which argument of an engine is none, or nothing."""
    if not isinstance(listen, str | None):
        return f"listen={listen!r:.60}; want HOST:PORT"
    if not isinstance(job, str | None):
        return f"job={job!r:.60}; want a name"
    if secret is not None and not (isinstance(secret, bytes) and secret):
        return "secret=, of no bytes; want some that nobody else knows"
    is_time = isinstance(spin_us, (int, float)) and 0 <= spin_us <= _LONGEST_SPIN_US
    if not is_time:
        return f"spin_us={spin_us!r:.60}; want microseconds, 0 to {_LONGEST_SPIN_US}"
    if not isinstance(lanes, int) or not 1 <= lanes <= MOST_LANES:
        return f"lanes={lanes!r:.60}; want 1 to {MOST_LANES}"
    if isinstance(rails, str) or not isinstance(rails, Sequence):
        return f"rails={rails!r:.60}; want a list of interfaces, or of addresses"
    return ""


class Engine(Ground, Closes):
    """Move tensors to and from other engines.

    `name` is how engines of this host find it; `listen`, "HOST:PORT", lets others come
    over the network. Engines of one `job` meet; over the network they need its secret,
    and the same `hop`: "tcp", or "ucx" or "nixl" where that is installed.

    `rails` are this host's interfaces, or addresses, that bytes to other hosts go by at
    once; ["all"] is each. `lanes` are streams to each peer, at least one a rail; of two
    engines the one counts that wants more.
    """

    def __init__(
        self, name: str, *, listen: str | None = None, job: str | None = None,
        secret: bytes | None = None, hop: str = "tcp", spin_us: float = 40.0,
        lanes: int = 1, rails: Sequence[str] = (),
    ) -> None:  # fmt: skip
        if not isinstance(name, str) or not 0 < len(name) <= 200 or ":" in name:
            raise CallError(f"engine name {name!r}; want 1 to 200 characters, no ':'")
        asked = listen, job, secret, spin_us, lanes, rails
        if why := _wrong(*asked):
            raise CallError(f"engine {name!r}: {why}")
        if why := lacks(hop):
            raise MissingExtraError(f"hop={hop!r}: {why}")
        functions()  # it takes long: now, while no peer waits for this engine
        super().__init__(
            name, job=text_of("STRETTO_JOB") if job is None else job,
            secret=secret, hop=hop, spin_us=spin_us, lanes=lanes, rails=rails,
        )  # fmt: skip
        self.is_closed = False
        """Whether this process has closed it."""
        self._refusal: EngineLost | None = None
        """Why nothing of it is of use in a forked child."""
        self._prepared: WeakSet[Any] = WeakSet()
        self._door = EngineDoor(self, listen)
        self.loop.start()
        forget_in_children(self)

    def __repr__(self) -> str:
        """Return its name, and whether it is of use."""
        return f"<Engine {self.name!r}{', closed' if self.is_closed else ''}>"

    @property
    def address(self) -> str:
        """Return where others come over the network, or nothing."""
        return self._door.address

    # Memory.

    def arena(self, nbytes: int) -> NDArray[np.uint8]:
        """Return memory that peers on this host reach without help, as bytes.

        Anything with the buffer protocol or DLPack takes it: `np.frombuffer`,
        `torch.from_dlpack`. It lives as long as anybody refers to it.
        """
        self._check_open()
        return self.shelf.arena(nbytes)

    def file(self, path: str | os.PathLike[str], nbytes: int) -> NDArray[np.uint8]:
        """Return a file's bytes as memory that can be shared; it grows to that size.

        What is put there is on disk when the kernel gets to it, at the latest after
        `os.sync`.
        """
        self._check_open()
        return self.shelf.file(path, nbytes)

    def stored(
        self, store: Store, name: str, layout: Layout | str | None = None, *,
        piece: int = 0,
    ) -> Region:  # fmt: skip
        """Return memory in a store, to put to and to get from: of a file, or objects.

        It is made when it is not there; without a layout it has to be. `piece` are the
        bytes that are kept as one, and whose sum is: by default a page, or 8 MB.
        """
        from stretto.transfer.stores.store import opened

        self._check_open()
        volume = opened(store, name, layout, piece)
        return Region(
            name=name, layout=volume.layout, kind=STORE, engine=self, holds=volume,
            addresses=(0,) * volume.layout.num_parts,
        )  # fmt: skip

    def share(
        self, tensors: Any, name: str, layout: Layout | str | None = None, *,
        read_only: bool = False,
    ) -> Region:  # fmt: skip
        """Give memory a name by which peers reach it, and return it.

        `tensors` is one, or a list of those that the layout puts before `|`. Whatever
        has the buffer protocol or DLPack is one. Without a layout it is a plain buffer.
        """
        self._check_open()
        return self.shelf.share(
            tensors, name, layout, read_only=read_only,
            describe=lambda addresses, sizes: self.gpu.describe(addresses, sizes),
        )  # fmt: skip

    def unshare(self, region: Region, timeout: float = 5.0) -> None:
        """Take memory back: when this returns, no peer writes to it any more."""
        self._check()
        self.shelf.withdraw(region, timeout)

    def lease(self, token: bytes = b"") -> Lease:
        """Return the right to use memory of ours, for a peer to pass with its puts.

        When it has ended, nothing arrives under it. A `token` is of `new_token`.
        """
        self._check_open()
        return self.leases.begin(token)

    # Peers.

    def connect(self, where: str | Mapping[str, Any]) -> Pending[Peer]:
        """Connect with the engine of a name on this host, at HOST:PORT, or of metadata.

        `.wait(seconds)` or `await` gives it, when it is ready. Who is connected already
        is the same peer, however often and by whatever address it is asked for.
        """
        self._check_open()
        return self._door.connect(where)

    @property
    def metadata(self) -> dict[str, str]:
        """Return what another engine needs for `connect`, as plain texts to pass on.

        Its `address` is empty when this engine does not listen.
        """
        return metadata_of(self.name, self.known.identity, self.hop, self.address)

    def peer(self, name: str) -> Pending[Peer]:
        """Return the peer of a name, or of an identity, which may still have to come.

        CallError: several have this name.
        """
        self._check()
        found: Pending[Peer] = Pending(self.loop, f"peer {name!r}")
        self.known.find(name, found)
        return found

    @property
    def peers(self) -> Mapping[str, Peer]:
        """Return the peers that are connected and ready, by identity."""
        self._check()
        return {i: p for i, p in self.known.peers.items() if p.ready.done()}

    def notified(self, tag: bytes, count: int = 1) -> Notified:
        """Return what waits for a notification, from any peers, so many times.

        It can be waited for, or awaited, again and again: each time takes as many.
        """
        self._check()
        return Notified(self.loop, self.counts, tag, count)

    def follow(self, topic: str, follower: Follows) -> None:
        """Have somebody told, in the engine's thread, of peers and what they send.

        See `Follows`; `peer.send(topic, body)` is what a peer calls for it.
        """
        self._check_open()
        self.topics.follow(topic, follower)

    def unfollow(self, topic: str) -> None:
        """Tell nobody of a topic any more."""
        self.topics.unfollow(topic)

    def explain(self, peer: Peer) -> str:
        """Return which way bytes go to each of a peer's memories, and why."""
        self._check()
        return peer.explain()

    # Transfers.

    def start(self, src: Any, dst: Any, **how: Any) -> Transfer:
        """Begin a transfer: one of the two is ours; see `View.put`."""
        if self._refusal is not None:
            raise self._refusal
        return start(self, src, dst, **how)

    def prepare(
        self, src: Any, dst: Any, **how: Any
    ) -> PreparedTransfer | EnqueuedCopies | Passing:
        """Prepare a transfer that is done again and again."""
        self._check()
        made = prepare(self, src, dst, **how)
        self._prepared.add(made)
        return made

    def batch(self, *transfers: Transfer) -> Pending[list[Stats]]:
        """Return what ends when all of these have, or one has failed."""
        self._check()
        return all_of(self.loop, transfers)

    # The end.

    def forget(self) -> None:
        """Be of no use in a child that this process forks, and be gone there."""
        why = (
            f"engine {self.name!r} belongs to the process that pid {os.getpid()} was "
            "forked from; make an engine in the child, or start processes with spawn"
        )
        self._refusal = EngineLost(why)
        # Another thread may hold the old lock.
        self.lock = self.shelf.lock = self.gone.lock = threading.RLock()
        self.leases.refusal = self._refusal
        peers = self.known.forget(self.lock)
        if not self.is_closed:
            self.is_closed = True
            self._door.disown()
        self.loop.forget(self._refusal)
        for peer in (*peers, *self.gone.peers):
            peer.disown(why)
        for prepared in list(self._prepared):
            prepared.disown(self._refusal)

    def _check(self) -> None:
        if self._refusal is not None:
            raise self._refusal

    def _check_open(self) -> None:
        self._check()
        if self.is_closed:
            raise CallError(f"engine {self.name!r} is closed")

    def close(self) -> None:
        """End it; peers hear of it, and whoever waits here for what will not come."""
        if self.is_closed:
            return
        self.is_closed = True
        peers = list(self.known.peers.values())
        for peer in peers:
            peer.part()  # all at once: one that hears nothing takes no other's time
        for peer in peers:
            peer.close()
        self.loop.call(lambda: self._door.close(self.known.peers))
        self.loop.stop()
        over = EngineLost(f"engine {self.name!r} was closed by this process")
        self.counts.end(over)
        self.known.end(over)
        super().close()
