"""An engine: what this process shares, whom it knows, and what it moves."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from stretto.errors import CallError, MissingExtraError, StaleMemory
from stretto.hop import MOST_LANES
from stretto.meeting.forks import forget_in_children
from stretto.meeting.secret import load_secret
from stretto.transfer import loader
from stretto.transfer.engine.counts import Counts, Notified
from stretto.transfer.engine.door import Door
from stretto.transfer.engine.leases import Lease, Writing
from stretto.transfer.engine.loop import Loop
from stretto.transfer.engine.peer import Peer
from stretto.transfer.engine.start import Starter
from stretto.transfer.layouts import Layout
from stretto.transfer.memory.across import Witness
from stretto.transfer.memory.board import Board
from stretto.transfer.memory.mapping import Shared, open_file
from stretto.transfer.memory.region import (
    ARENA,
    GPU,
    STORE,
    Region,
    addresses_of,
    told,
)
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
        self._peers: dict[str, Peer] = {}
        self._wanted: dict[str, list[Pending[Peer]]] = {}
        self._gone: list[Peer] = []
        """Lost peers whose processes may still write to our memory."""
        self._regions: dict[str, Region] = {}
        self._arenas: list[Shared] = []
        self._fds: dict[str, tuple[int, ...]] = {}
        """Descriptors of memory on the GPU, by the name under which it is shared."""
        self.writing = Writing()
        self._is_closed = False
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

        volume = opened(store, name, layout, piece)
        return Region(
            name=name, layout=volume.layout, kind=STORE, engine=self, holds=volume,
            addresses=(0,) * volume.layout.num_parts,
        )  # fmt: skip

    def _announce(self, shared: Shared) -> NDArray[np.uint8]:
        with self.lock:
            number = len(self._arenas)
            self._arenas.append(shared)
            peers = list(self._peers.values())
        for peer in peers:
            self._tell_arena(peer, number, shared)
        return shared.array

    def _tell_arena(self, peer: Peer, number: int, shared: Shared) -> None:
        if not peer.is_far:
            body = {"say": "arena", "id": number, "nbytes": shared.nbytes}
            peer.tell(body, (shared.fd,))

    def share(
        self, tensors: Any, name: str, layout: Layout | str | None = None, *,
        read_only: bool = False,
    ) -> Region:  # fmt: skip
        """Give memory a name by which peers reach it, and return it.

        `tensors` is one, or a list of those that the layout puts before `|`. Whatever
        has the buffer protocol or DLPack is one. Without a layout it is a plain buffer.
        """
        fitted, addresses, sizes, kind = addresses_of(
            tensors, layout, f"share({name!r})", written=not read_only
        )
        slot, epoch = self.board.begin()
        if kind == GPU:
            about = {
                "name": name, "layout": fitted, "addresses": tuple(addresses),
                "slot": slot, "epoch": epoch, "read_only": read_only, "engine": self,
            }  # fmt: skip
            made, fds = self._starter.gpu.share(tensors, about, sizes)
            self._fds[name] = fds
            return self.add(made)
        places = tuple(map(self._place, addresses, sizes))
        inside = all(arena >= 0 for arena, _ in places)
        region = Region(
            name=name, layout=fitted, kind=ARENA if inside else kind,
            addresses=tuple(addresses), places=places if inside else (), slot=slot,
            epoch=epoch, read_only=read_only, engine=self, holds=tensors,
        )  # fmt: skip
        return self.add(region)

    def add(self, region: Region) -> Region:
        """Let peers know of a region."""
        with self.lock:
            if region.name in self._regions:
                raise CallError(f"engine {self.name!r} shares {region.name!r} already")
            self._regions[region.name] = region
            peers = list(self._peers.values())
        for peer in peers:
            self._tell_region(peer, region)
        return region

    def _tell_region(self, peer: Peer, region: Region) -> None:
        peer.tell(told(region), () if peer.is_far else self._fds.get(region.name, ()))

    def mapping_of(self, region: Region, address: int) -> tuple[int, int]:
        """Return the arena, or the memory, in which a tensor of a region lies here."""
        arenas = self._arenas if region.peer is None else region.peer.arenas
        for shared in arenas:
            if 0 <= address - shared.address < shared.nbytes:
                return shared.address, shared.nbytes
        return address, region.layout.part_bytes

    def unshare(self, region: Region, timeout: float = 5.0) -> None:
        """Take memory back: when this returns, no peer writes to it any more."""
        with self.lock:
            self._regions.pop(region.name, None)
            peers = list(self._peers.values())
            fds = self._fds.pop(region.name, ())
        for peer in peers:
            peer.tell({"say": "unshare", "name": region.name})
        for fd in fds:
            os.close(fd)
        self.renew(region.slot, region.epoch, timeout)
        self.board.end(region.slot)

    def _place(self, address: int, nbytes: int) -> tuple[int, int]:
        for number, shared in enumerate(self._arenas):
            at = address - shared.address
            if at >= 0 and at + nbytes <= shared.nbytes:
                return number, at
        return -1, address

    def lease(self) -> Lease:
        """Return the right to use memory of ours, for a peer to pass with its puts.

        When it has been ended, nothing that was put under it arrives any more.
        """
        return Lease(self, *self.board.begin())

    def renew(self, slot: int, epoch: int, timeout: float) -> int:
        """Give a slot a new epoch, and wait until nobody writes under the old one."""
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

    def connect(self, name: str) -> Pending[Peer]:
        """Connect with the engine of a name on this host, or at HOST:PORT.

        `.wait(seconds)` or `await` gives it. Known peers are given at once.
        """
        known = self._peers.get(name)
        found: Pending[Peer] = Pending(self.loop, f"connection to {name!r}")
        if self._is_closed:
            raise CallError(f"engine {self.name!r} is closed")
        if known is not None and not known.lost:
            found.finish(known)
        elif ":" in name:
            self.loop.move(lambda: self._door.come(name, found))
        else:
            self._door.come(name, found)
        return found

    def peer(self, name: str) -> Pending[Peer]:
        """Return the peer of a name, which may still have to come here."""
        found: Pending[Peer] = Pending(self.loop, f"peer {name!r}")
        with self.lock:
            known = self._peers.get(name)
            if known is None:
                self._wanted.setdefault(name, []).append(found)
        if known is not None:
            found.finish(known)
        return found

    @property
    def peers(self) -> Mapping[str, Peer]:
        """Return the peers that are connected, by name."""
        return dict(self._peers)

    def welcome(self, peer: Peer) -> None:
        """Know a peer, and tell it what is shared here."""
        with self.lock:
            before = self._peers.get(peer.name)
            self._peers[peer.name] = peer
            arenas = list(enumerate(self._arenas))
            regions = list(self._regions.values())
        if before is not None:
            before.lose("another engine of its name has come")
            with self.lock:
                self._peers[peer.name] = peer
        self.loop.add(peer)
        for number, shared in arenas:
            self._tell_arena(peer, number, shared)
        for region in regions:
            self._tell_region(peer, region)
        peer.tell({"say": "ready"})
        peer.ready.then(lambda: self._is_here(peer))

    def _is_here(self, peer: Peer) -> None:
        if peer.lost:
            return
        with self.lock:
            wanted = self._wanted.pop(peer.name, [])
        for found in wanted:
            found.finish(peer)

    def drop(self, peer: Peer, connection: Any) -> None:
        """Drop a peer that is lost."""
        with self.lock:
            if self._peers.get(peer.name) is peer:
                del self._peers[peer.name]
            self._gone = [p for p in self._gone if not p.is_dead()]
            self._gone.append(peer)
        number = connection.fileno()
        self.loop.remove(peer)

        def unregister() -> None:
            try:
                self.loop.selector.unregister(number)
            except (KeyError, ValueError):
                return

        self.loop.call(unregister)

    def writers(self) -> list[Peer]:
        """Return the peers that may write to memory of ours."""
        with self.lock:
            return [*self._peers.values(), *self._gone]

    def notified(self, tag: bytes, count: int = 1) -> Notified:
        """Return what waits for a notification, from any peers, so many times.

        It can be waited for, or awaited, again and again: each time takes as many.
        """
        return Notified(self.loop, self.counts, tag, count)

    def explain(self, peer: Peer) -> str:
        """Return which way bytes go to each of a peer's memories, and why."""
        return explained(peer)

    # Transfers.

    def start(self, src: Any, dst: Any, **how: Any) -> Transfer:
        """Begin a transfer: one of the two is ours; see `View.put`."""
        return self._starter.start(src, dst, **how)

    def prepare(self, src: Any, dst: Any, **how: Any) -> Prepared | Enqueued | Passing:
        """Prepare a transfer that is done again and again."""
        return self._starter.prepare(src, dst, **how)

    def batch(self, *transfers: Transfer) -> Pending[list[Stats]]:
        """Return what ends when all of these have, or one has failed."""
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
        """Be of no use in a child that this process forks."""
        self._is_closed = True
        self.loop.forget()

    def close(self) -> None:
        """End it; peers hear of it."""
        if self._is_closed:
            return
        self._is_closed = True
        peers = list(self._peers.values())
        for peer in peers:
            peer.part()  # all at once: one that hears nothing takes no other's time
        for peer in peers:
            peer.close()
        self.loop.call(lambda: self._door.close(dict(self._peers)))
        self.loop.stop()
        self._starter.close()
        for fd in (fd for fds in self._fds.values() for fd in fds):
            os.close(fd)
        for shared in self._arenas:
            shared.close()
        self.board.shared.close()
