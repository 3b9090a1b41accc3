"""An engine: what this process shares, whom it knows, and what it moves."""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from stretto.errors import CallError, EngineLost, MissingExtraError, StaleMemory
from stretto.hop import MOST_LANES
from stretto.meeting.forks import forget_in_children
from stretto.meeting.secret import load_secret
from stretto.transfer import loader
from stretto.transfer.engine.counts import Counts, Notified
from stretto.transfer.engine.door import Door, metadata_of
from stretto.transfer.engine.gone import Gone
from stretto.transfer.engine.known import Known
from stretto.transfer.engine.leases import Lease, Writing, read_token
from stretto.transfer.engine.loop import Loop
from stretto.transfer.engine.peer import Peer
from stretto.transfer.engine.shelf import Shelf
from stretto.transfer.engine.start import Starter
from stretto.transfer.layouts import Layout
from stretto.transfer.memory.across import Witness
from stretto.transfer.memory.board import Board
from stretto.transfer.memory.mapping import Shared, open_file
from stretto.transfer.memory.region import Region
from stretto.transfer.memory.tensors import ARENA, GPU, STORE, addresses_of
from stretto.transfer.ways.answer import answer, fence_off
from stretto.transfer.ways.paths import explained, lacks
from stretto.transfer.ways.pending import Closes, Pending
from stretto.transfer.ways.staged import Receiving, Sending
from stretto.transfer.ways.transfer import Prepared, Stats, Transfer, all_of

if TYPE_CHECKING:
    from stretto.transfer.stores.store import Store
    from stretto.transfer.ways.gpu import Enqueued, Passing

__all__ = ["Engine"]


class Engine(Closes):
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
        if not name or ":" in name or len(name) > 200:
            raise CallError(f"engine name {name!r}; want 1 to 200 characters, no ':'")
        if why := lacks(hop):
            raise MissingExtraError(f"hop={hop!r}: {why}")
        if not 1 <= lanes <= MOST_LANES:
            raise CallError(f"lanes={lanes}; want 1 to {MOST_LANES}")
        self.name, self.hop = name, hop
        self.rails, self.lanes = tuple(rails), max(lanes, len(rails))
        self.job = os.environ.get("STRETTO_JOB", "") if job is None else job
        self._secret = secret
        self.lock = threading.RLock()
        self.counts = Counts()
        self.witness = Witness()
        self.board = Board()
        self.loop = Loop(name, spin_us)
        self.known = Known(secrets.token_hex(16), self.lock)
        """The peers; and what tells this engine from all others."""
        self._gone = Gone(self.loop, self.lock)
        self._shelf = Shelf(name, self.lock, lambda: self.known.peers.values())
        self._regions = self._shelf.regions
        self.writing = Writing()
        self._is_closed = False
        self._refusal: EngineLost | None = None
        """Why nothing of it is of use in a forked child."""
        self._prepared: WeakSet[Any] = WeakSet()
        self._starter = Starter(self)
        self._door = Door(self, listen)
        self.loop.start()
        loader.start()
        forget_in_children(self)

    @property
    def address(self) -> str:
        """Return where others come over the network, or nothing."""
        return self._door.address

    def secret(self) -> bytes:
        """Return what engines of the job know, and nobody else."""
        if self._secret is None:
            self._secret = load_secret()
        return self._secret

    # Memory.

    def arena(self, nbytes: int) -> NDArray[np.uint8]:
        """Return memory that peers on this host reach without help, as bytes.

        Anything with the buffer protocol or DLPack takes it: `np.frombuffer`,
        `torch.from_dlpack`. It lives as long as anybody refers to it.
        """
        self._check()
        if not isinstance(nbytes, int) or nbytes < 1:
            raise CallError(f"arena({nbytes!r}); want bytes, 1 or more")
        shared = Shared(nbytes)
        shared.prefault()
        return self._announce(shared)

    def file(self, path: str | os.PathLike[str], nbytes: int) -> NDArray[np.uint8]:
        """Return a file's bytes as memory that can be shared; it grows to that size.

        What is put there is on disk when the kernel gets to it, at the latest after
        `os.sync`.
        """
        self._check()
        return self._announce(open_file(Path(path), nbytes))

    def stored(
        self, store: Store, name: str, layout: Layout | str | None = None, *,
        piece: int = 0,
    ) -> Region:  # fmt: skip
        """Return memory in a store, to put to and to get from: of a file, or objects.

        It is made when it is not there; without a layout it has to be. `piece` are the
        bytes that are kept as one, and whose sum is: by default a page, or 8 MB.
        """
        from stretto.transfer.stores.store import opened

        self._check()
        volume = opened(store, name, layout, piece)
        return Region(
            name=name, layout=volume.layout, kind=STORE, engine=self, holds=volume,
            addresses=(0,) * volume.layout.num_parts,
        )  # fmt: skip

    def _announce(self, shared: Shared) -> NDArray[np.uint8]:
        self._shelf.announce(shared)
        return shared.array

    def share(
        self, tensors: Any, name: str, layout: Layout | str | None = None, *,
        read_only: bool = False,
    ) -> Region:  # fmt: skip
        """Give memory a name by which peers reach it, and return it.

        `tensors` is one, or a list of those that the layout puts before `|`. Whatever
        has the buffer protocol or DLPack is one. Without a layout it is a plain buffer.
        """
        self._check()
        fitted, addresses, sizes, kind, pins = addresses_of(
            tensors, layout, f"share({name!r})", written=not read_only
        )
        slot, epoch = self.board.begin()
        if kind == GPU:
            about = {
                "name": name, "layout": fitted, "addresses": tuple(addresses),
                "slot": slot, "epoch": epoch, "read_only": read_only, "engine": self,
            }  # fmt: skip
            made, fds = self._starter.gpu.share(tensors, about, sizes)
            return self._shelf.add(made, fds)
        places = tuple(map(self._shelf.place, addresses, sizes))
        inside = all(arena >= 0 for arena, _ in places)
        region = Region(
            name=name, layout=fitted, kind=ARENA if inside else kind,
            addresses=tuple(addresses), places=places if inside else (), slot=slot,
            epoch=epoch, read_only=read_only, engine=self, holds=tensors, pins=pins,
        )  # fmt: skip
        return self._shelf.add(region)

    def mapping_of(self, region: Region, address: int) -> tuple[int, int]:
        """Return the arena, or the memory, in which a tensor of a region lies here."""
        arenas = self._shelf.arenas if region.peer is None else region.peer.arenas
        for shared in arenas:
            if 0 <= address - shared.address < shared.nbytes:
                return shared.address, shared.nbytes
        return address, region.layout.part_bytes

    def unshare(self, region: Region, timeout: float = 5.0) -> None:
        """Take memory back: when this returns, no peer writes to it any more."""
        self._check()
        self._shelf.remove(region)
        self.renew(region.slot, region.epoch, timeout)
        self.board.end(region.slot)

    def lease(self, token: bytes = b"") -> Lease:
        """Return the right to use memory of ours, for a peer to pass with its puts.

        When it has ended, nothing arrives under it. A `token` is of `new_token`.
        """
        self._check()
        return Lease(self, *self.board.begin(read_token(token) if token else None))

    def renew(self, slot: int, epoch: int, timeout: float) -> int:
        """Give a slot a new epoch, and wait until nobody writes under the old one."""
        self._check()
        fresh = self.board.renew(slot)
        fence_off(self, epoch, timeout)
        return fresh

    def gpu_ring(self, peer: Peer | None) -> Any:
        """Return pinned memory for what goes between a GPU here and a peer."""
        return self._starter.gpu.ring(peer)

    @property
    def has_gpu(self) -> bool:
        """Return whether a GPU is used here."""
        return self._starter.has_gpu

    # Peers.

    def connect(self, where: str | Mapping[str, Any]) -> Pending[Peer]:
        """Connect with the engine of a name on this host, at HOST:PORT, or of metadata.

        `.wait(seconds)` or `await` gives it, when it is ready. Who is connected already
        is the same peer, however often and by whatever address it is asked for.
        """
        self._check()
        if self._is_closed:
            raise CallError(f"engine {self.name!r} is closed")
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

    def welcome(self, peer: Peer) -> None:
        """Know a peer, and tell it what is shared here."""
        with self.lock:  # what is shared meanwhile is told once
            self.known.welcome(peer)
            self.loop.add(peer)
            self._shelf.show(peer)
        peer.tell({"say": "ready"})

    def drop(self, peer: Peer) -> None:
        """Drop a peer that is lost."""
        numbers = peer.descriptors
        with self.lock:
            self.known.drop(peer)
            self._gone.add(peer)
        self.loop.remove(peer)

        def unregister() -> None:
            for number in numbers:
                with suppress(KeyError, ValueError):
                    self.loop.selector.unregister(number)

        self.loop.call(unregister)
        self.loop.call(self._gone.look)

    def writers(self) -> list[Peer]:
        """Return the peers that may write to memory of ours."""
        with self.lock:
            return [*self.known.peers.values(), *self._gone.peers]

    def notified(self, tag: bytes, count: int = 1) -> Notified:
        """Return what waits for a notification, from any peers, so many times.

        It can be waited for, or awaited, again and again: each time takes as many.
        """
        self._check()
        return Notified(self.loop, self.counts, tag, count)

    def explain(self, peer: Peer) -> str:
        """Return which way bytes go to each of a peer's memories, and why."""
        self._check()
        return explained(peer)

    # Transfers.

    def start(self, src: Any, dst: Any, **how: Any) -> Transfer:
        """Begin a transfer: one of the two is ours; see `View.put`."""
        if self._refusal is not None:
            raise self._refusal
        return self._starter.start(src, dst, **how)

    def prepare(self, src: Any, dst: Any, **how: Any) -> Prepared | Enqueued | Passing:
        """Prepare a transfer that is done again and again."""
        self._check()
        made = self._starter.prepare(src, dst, **how)
        self._prepared.add(made)
        return made

    def batch(self, *transfers: Transfer) -> Pending[list[Stats]]:
        """Return what ends when all of these have, or one has failed."""
        self._check()
        return all_of(self.loop, transfers)

    def asked(
        self, peer: Peer, number: int, header: Mapping[str, Any], pages: Any
    ) -> Sending | Receiving:
        """Return what does a transfer that a peer asks for."""
        name = str(header.get("region"))
        region = self._regions.get(name)
        if region is None:
            raise StaleMemory(f"engine {self.name!r} shares no {name!r} any more")
        return answer(self, peer, number, region, header, pages)

    # The end.

    def forget(self) -> None:
        """Be of no use in a child that this process forks, and be gone there."""
        why = (
            f"engine {self.name!r} belongs to the process that pid {os.getpid()} was "
            "forked from; make an engine in the child, or start processes with spawn"
        )
        self._refusal = EngineLost(why)
        # Another thread may hold the old lock.
        self.lock = self._shelf.lock = self._gone.lock = threading.RLock()
        peers = self.known.forget(self.lock)
        if not self._is_closed:
            self._is_closed = True
            self._door.disown()
        self.loop.forget(self._refusal)
        for peer in (*peers, *self._gone.peers):
            peer.disown(why)
        for prepared in list(self._prepared):
            prepared.disown(self._refusal)

    @property
    def is_inherited(self) -> bool:
        """Return whether it is that of the process that this one was forked from."""
        return self._refusal is not None

    def _check(self) -> None:
        if self._refusal is not None:
            raise self._refusal

    def close(self) -> None:
        """End it; peers hear of it."""
        if self._is_closed:
            return
        self._is_closed = True
        peers = list(self.known.peers.values())
        for peer in peers:
            peer.part()  # all at once: one that hears nothing takes no other's time
        for peer in peers:
            peer.close()
        self.loop.call(lambda: self._door.close(self.known.peers))
        self.loop.stop()
        self._starter.close()
        self._shelf.close()
        self.board.shared.close()
