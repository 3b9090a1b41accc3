"""What an engine shares: its arenas and regions, of which every peer is told."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.errors import CallError, SharedMemoryError, StaleMemory
from stretto.fabric.memory import Shared, open_file, prefault
from stretto.transfer.layouts import Layout
from stretto.transfer.links.counterpart import Counterpart
from stretto.transfer.memory.tensors import ARENA, GPU, addresses_of
from stretto.transfer.regions.leases import Leases
from stretto.transfer.regions.region import Begins, Region, dump

LONGEST_NAME = 1000
_Described = tuple[list[dict[str, Any]], tuple[int, ...]]


class Shelf:
    """See the module; `peers` returns those who are there, `owner` is the engine."""

    def __init__(
        self, owner: Begins, lock: Any, leases: Leases,
        peers: Callable[[], Iterable[Counterpart]],
    ) -> None:  # fmt: skip
        self._owner, self.lock, self._peers = owner, lock, peers
        self._leases = leases
        self.regions: dict[str, Region] = {}
        self.arenas: list[Shared] = []
        self._fds: dict[str, tuple[int, ...]] = {}
        """Descriptors of memory on the GPU, by the name under which it is shared."""

    # Arenas.

    def arena(self, nbytes: int) -> NDArray[np.uint8]:
        """Return new memory that peers of this host map."""
        is_number = isinstance(nbytes, int) and not isinstance(nbytes, bool)
        if not is_number or not 0 < nbytes < 1 << 62:
            raise CallError(f"arena({nbytes!r:.40}); want bytes, 1 or more")
        shared = Shared(nbytes)
        try:
            prefault(shared.address, nbytes)
        except SharedMemoryError:
            shared.close()
            raise
        return self._announce(shared)

    def file(self, path: str | os.PathLike[str], nbytes: int) -> NDArray[np.uint8]:
        """Return a file's bytes as such memory."""
        return self._announce(Shared(nbytes, open_file(Path(path), nbytes)))

    def _announce(self, shared: Shared) -> NDArray[np.uint8]:
        with self.lock:
            number = len(self.arenas)
            self.arenas.append(shared)
            peers = list(self._peers())
        for peer in peers:
            _tell_arena(peer, number, shared)
        return shared.array

    def mapping_of(
        self, arenas: Sequence[Shared] | None, address: int, nbytes: int
    ) -> tuple[int, int]:
        """Return the arena, ours or one of these, in which memory lies; else itself."""
        for shared in self.arenas if arenas is None else arenas:
            if 0 <= address - shared.address < shared.nbytes:
                return shared.address, shared.nbytes
        return address, nbytes

    # Regions.

    def share(
        self, tensors: Any, name: str, layout: Layout | str | None, *,
        read_only: bool, describe: Callable[[Sequence[int], Sequence[int]], _Described],
    ) -> Region:  # fmt: skip
        """Give memory a name, and an epoch; `describe` says how a GPU's is mapped."""
        if not isinstance(name, str) or not 0 < len(name) <= LONGEST_NAME:
            raise CallError(
                f"share({name!r:.60}): want a name of 1 to {LONGEST_NAME} characters"
            )
        fitted, addresses, sizes, kind, pins = addresses_of(
            tensors, layout, f"share({name!r})", written=not read_only
        )
        places: tuple[tuple[int, int], ...] = ()
        gpu: Any = None
        fds: tuple[int, ...] = ()
        if kind == GPU:
            gpu, fds = describe(addresses, sizes)
        else:
            places = tuple(map(self._place, addresses, sizes))
            inside = all(arena >= 0 for arena, _ in places)
            kind, places = (ARENA, places) if inside else (kind, ())
        slot, epoch = self._leases.board.begin()
        region = Region(
            name=name, layout=fitted, kind=kind, addresses=tuple(addresses),
            places=places, slot=slot, epoch=epoch, read_only=read_only,
            engine=self._owner, holds=tensors, pins=pins, gpu=gpu,
        )  # fmt: skip
        with self.lock:
            is_new = name not in self.regions
            if is_new:
                self.regions[name] = region
                self._fds[name] = fds
            peers = list(self._peers())
        if not is_new:
            _close(fds)
            self._leases.board.end(slot)
            raise CallError(f"engine {self._owner.name!r} shares {name!r} already")
        for peer in peers:
            self._tell_region(peer, region)
        return region

    def withdraw(self, region: Region, timeout: float) -> None:
        """Share it no more: when this returns, no peer writes to it."""
        with self.lock:
            self.regions.pop(region.name, None)
            peers = list(self._peers())
            fds = self._fds.pop(region.name, ())
        for peer in peers:
            peer.tell({"say": "unshare", "name": region.name})
        _close(fds)
        self._leases.end(region.slot, region.epoch, timeout)

    def find(self, name: str) -> Region:
        """Return the region of a name that a peer asks for."""
        region = self.regions.get(name)
        if region is None:
            owner = self._owner.name
            raise StaleMemory(f"engine {owner!r} shares no {name!r} any more")
        return region

    def show(self, peer: Counterpart) -> None:
        """Tell a new peer of everything; the lock is held since it is one."""
        for number, shared in enumerate(self.arenas):
            _tell_arena(peer, number, shared)
        for region in list(self.regions.values()):
            self._tell_region(peer, region)

    def _tell_region(self, peer: Counterpart, region: Region) -> None:
        peer.tell(dump(region), () if peer.is_far else self._fds.get(region.name, ()))

    def _place(self, address: int, nbytes: int) -> tuple[int, int]:
        """Return the arena in which memory lies, and where; -1: in none."""
        for number, shared in enumerate(self.arenas):
            at = address - shared.address
            if at >= 0 and at + nbytes <= shared.nbytes:
                return number, at
        return -1, address

    def close(self) -> None:
        """Close all descriptors; who refers to memory keeps it mapped."""
        for fds in self._fds.values():
            _close(fds)
        self._fds.clear()
        for shared in self.arenas:
            shared.close()


def _tell_arena(peer: Counterpart, number: int, shared: Shared) -> None:
    if not peer.is_far:
        body = {"say": "arena", "id": number, "nbytes": shared.nbytes}
        peer.tell(body, (shared.fd,))


def _close(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)
