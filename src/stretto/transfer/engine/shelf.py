"""What an engine shares: its arenas and regions, of which every peer is told."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

from stretto.errors import CallError
from stretto.transfer.memory.mapping import Shared
from stretto.transfer.memory.region import Region, told

__all__ = ["Shelf"]


class Shelf:
    """See the module; `peers` returns those who are there, `owner` names the engine."""

    def __init__(
        self, owner: str, lock: Any, peers: Callable[[], Iterable[Any]]
    ) -> None:
        self._owner, self.lock, self._peers = owner, lock, peers
        self.regions: dict[str, Region] = {}
        self.arenas: list[Shared] = []
        self._fds: dict[str, tuple[int, ...]] = {}
        """Descriptors of memory on the GPU, by the name under which it is shared."""

    def announce(self, shared: Shared) -> None:
        """Let peers of this host know of an arena."""
        with self.lock:
            number = len(self.arenas)
            self.arenas.append(shared)
            peers = list(self._peers())
        for peer in peers:
            self._tell_arena(peer, number, shared)

    def add(self, region: Region, fds: tuple[int, ...] = ()) -> Region:
        """Let peers know of a region, and of what lets them map it."""
        with self.lock:
            if region.name in self.regions:
                for fd in fds:
                    os.close(fd)
                raise CallError(
                    f"engine {self._owner!r} shares {region.name!r} already"
                )
            self.regions[region.name] = region
            if fds:
                self._fds[region.name] = fds
            peers = list(self._peers())
        for peer in peers:
            self._tell_region(peer, region)
        return region

    def remove(self, region: Region) -> None:
        """Let peers know that a region is shared no more."""
        with self.lock:
            self.regions.pop(region.name, None)
            peers = list(self._peers())
            fds = self._fds.pop(region.name, ())
        for peer in peers:
            peer.tell({"say": "unshare", "name": region.name})
        for fd in fds:
            os.close(fd)

    def show(self, peer: Any) -> None:
        """Tell a new peer of everything; the lock is held since it is one."""
        for number, shared in enumerate(self.arenas):
            self._tell_arena(peer, number, shared)
        for region in list(self.regions.values()):
            self._tell_region(peer, region)

    def _tell_arena(self, peer: Any, number: int, shared: Shared) -> None:
        if not peer.is_far:
            body = {"say": "arena", "id": number, "nbytes": shared.nbytes}
            peer.tell(body, (shared.fd,))

    def _tell_region(self, peer: Any, region: Region) -> None:
        peer.tell(told(region), () if peer.is_far else self._fds.get(region.name, ()))

    def place(self, address: int, nbytes: int) -> tuple[int, int]:
        """Return the arena in which memory lies, and where; -1: in none."""
        for number, shared in enumerate(self.arenas):
            at = address - shared.address
            if at >= 0 and at + nbytes <= shared.nbytes:
                return number, at
        return -1, address

    def close(self) -> None:
        """Close all descriptors; who refers to memory keeps it mapped."""
        for fd in (fd for fds in self._fds.values() for fd in fds):
            os.close(fd)
        self._fds.clear()
        for shared in self.arenas:
            shared.close()
