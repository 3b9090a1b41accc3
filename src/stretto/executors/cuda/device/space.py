"""Every address that all ranks can name: the slab, and arrays registered beside it.

An *offset* means the same array on every rank. Below `REGISTERED` it is an offset in
the slab; above, it names an array that all ranks registered together.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from stretto.arrays import packed_view
from stretto.errors import CallError, DeviceError
from stretto.executors import Group, hosts_of
from stretto.executors.cuda.device.driver import Device, ask
from stretto.executors.cuda.device.memory import Slab
from stretto.executors.cuda.device.sharing import Imports, describe, identity, received
from stretto.fabric.variables import number_of

REGISTERED = 1 << 44
"""Offsets from here on: array number i begins at (i + 1) << 44."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """An array of somebody else's, by identity: addresses are used again."""

    start: int
    nbytes: int
    identity: int
    peers: tuple[int, ...]
    """Where each rank's array is mapped here; this rank's own among them."""
    told: tuple[Mapping[str, Any], ...]
    owner: Any
    """Kept, so that its memory is not given back while peers map it."""


class AddressSpace:
    """The slab and the registered arrays of one session."""

    def __init__(self, device: Device, group: Group, slab: Slab) -> None:
        self.device = device
        self.rank = group.rank
        self.num_ranks = group.num_ranks
        self.peers = slab.peers
        self._told: list[weakref.WeakMethod[Callable[[], None]]] = []
        self._group = group
        self._slab = slab
        self._arrays: list[Registered | None] = []
        self._imports = Imports(device)

    def offset(self, address: int, nbytes: int = 1) -> int | None:
        """Return what all ranks call this address; None: peers do not reach all of it.

        Where arrays that were registered overlap, the one that ends last counts.
        """
        inside = self._slab.offset(address, nbytes)
        if inside is not None or not self._arrays:
            return inside
        found = [
            (one.start + one.nbytes, index, one)
            for index, one in enumerate(self._arrays)
            if one is not None and 0 <= address - one.start < one.nbytes
        ]
        for end, index, one in sorted(found, key=lambda f: f[:2], reverse=True):
            if identity(address) == one.identity:
                reached = address + nbytes <= end
                return (
                    (index + 1) * REGISTERED + address - one.start if reached else None
                )
        return None

    def peer_address(self, rank: int, offset: int) -> int:
        """Return where a rank's array of that offset is mapped here."""
        if offset < REGISTERED:
            return self._slab.peers[rank] + offset
        index, inner = divmod(offset, REGISTERED)
        one = self._arrays[index - 1]
        assert one is not None, "offsets are asked for before they are used"
        return one.peers[rank] + inner

    def register(self, array: Any) -> bool:
        """Let peers touch an array (collective); False: it cannot be shared.

        Then it stays staged on every rank, with the same results.
        """
        start, nbytes = packed_view(array)[:2]
        told, fds = describe(start, nbytes) if nbytes else ({"kind": "empty"}, ())
        try:
            said = self._group.exchange({"register": nbytes, **told}, fds)
        finally:
            for fd in fds:
                os.close(fd)
        sizes = [int(m["register"]) for m, _ in said]
        with received(said):
            if len(set(sizes)) != 1:
                raise CallError(
                    f"register() of {sizes} bytes by rank; it is collective: want an "
                    "array of the same size on every rank"
                )
            shared = all(m["kind"] in ("ipc", "fd") for m, _ in said)
            peers = self._open(said, start) if shared else None
        answers = [
            m["mapped"] for m, _ in self._group.exchange({"mapped": bool(peers)})
        ]
        messages = tuple(m for m, _ in said)
        if peers is None or not all(answers):
            if peers is not None:
                self._close(messages, peers)
            return False
        self._arrays.append(
            Registered(
                start=start,
                nbytes=nbytes,
                identity=identity(start),
                peers=peers,
                told=messages,
                owner=array,
            )
        )
        self._changed()
        return True

    def deregister(self, array: Any) -> None:
        """Take an array back (collective): from now on it is staged.

        What still runs may touch peers' arrays: everybody waits for that first.
        """
        start = packed_view(array).start
        found = [
            i for i, a in enumerate(self._arrays) if a is not None and a.start == start
        ]
        ask("cuCtxSynchronize")
        said = [m["gone"] for m, _ in self._group.exchange({"gone": found[-1:]})]
        if len({tuple(numbers) for numbers in said}) != 1:
            raise CallError(
                f"deregister() of arrays number {said} by rank; it is collective: want "
                "the same array on every rank"
            )
        if not found:
            return
        one = self._arrays[found[-1]]
        assert one is not None, "it was found among those that are registered"
        self._arrays[found[-1]] = None
        self._changed()
        self._close(one.told, one.peers)
        self._group.exchange({"closed": start})  # before anybody gives memory back

    def tell(self, forget: Callable[[], None]) -> None:
        """Have a method called, as long as its object lives, when offsets change."""
        self._told.append(weakref.WeakMethod(forget))

    def _changed(self) -> None:
        self._told = [method for method in self._told if method() is not None]
        for method in self._told:
            if (forget := method()) is not None:
                forget()

    def _open(self, said: list[Any], start: int) -> tuple[int, ...] | None:
        """Map the peers' arrays; None when one cannot be."""
        peers: list[int] = []
        try:
            for q, (told, fds) in enumerate(said):
                peers.append(start if q == self.rank else self._imports.open(told, fds))
        except DeviceError:
            self._close([m for m, _ in said], tuple(peers))
            return None
        return tuple(peers)

    def _close(self, told: Any, peers: tuple[int, ...]) -> None:
        for q, address in enumerate(peers):
            if q != self.rank:
                self._imports.close(told[q], address)

    def close(self) -> None:
        """Unmap the peers' arrays, and let go of ours."""
        self._imports.close_all()
        self._arrays.clear()


def told_local_rank() -> int | None:
    """Return this process's number on its host, if whoever started it says so."""
    for name in ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID"):
        if os.environ.get(name):
            return number_of(name, 0)
    return None


def local_rank(group: Group) -> int:
    """Return this rank's number on its host, from whoever started it."""
    if (told := told_local_rank()) is not None:
        return told
    hosts = hosts_of(group)
    return hosts[: group.rank].count(hosts[group.rank])
