"""Every address that all ranks can name: the slab, and arrays registered beside it.

An *offset* means the same array on every rank. Below `REGISTERED` it is an offset in
the slab; above, it names an allocation that all ranks registered together.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from stretto.errors import CallError, DeviceError
from stretto.executors import Group
from stretto.executors.cuda.arrays import where
from stretto.executors.cuda.driver import Device, api, ask
from stretto.executors.cuda.memory import Slab

__all__ = ["REGISTERED", "AddressSpace", "local_rank"]

REGISTERED = 1 << 44
"""Offsets from here on: allocation number i begins at (i + 1) << 44."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """An allocation of somebody else's, by identity: addresses are used again."""

    base: int
    nbytes: int
    identity: int
    peers: tuple[int, ...]


class AddressSpace:
    """The slab and the registered allocations of one session."""

    def __init__(self, device: Device, group: Group, slab: Slab) -> None:
        self.device = device
        self.rank = group.rank
        self.num_ranks = group.num_ranks
        self.peers = slab.peers
        self._group = group
        self._slab = slab
        self._registered: list[Registered] = []
        self._opened: list[int] = []

    def offset(self, address: int) -> int | None:
        """Return what all ranks call this address, or None."""
        inside = self._slab.offset(address)
        if inside is not None or not self._registered:
            return inside
        for index, one in enumerate(self._registered):
            if 0 <= address - one.base < one.nbytes:
                if _identity(address) != one.identity:
                    return None
                return (index + 1) * REGISTERED + address - one.base
        return None

    def peer_address(self, rank: int, offset: int) -> int:
        """Return where a rank's array of that offset is mapped here."""
        if offset < REGISTERED:
            return self._slab.peers[rank] + offset
        index, inner = divmod(offset, REGISTERED)
        return self._registered[index - 1].peers[rank] + inner

    def register(self, array: Any) -> None:
        """Let peers touch an array's allocation (collective).

        It must be one allocation that legacy IPC can share: what cudaMalloc returned,
        so not torch's expandable segments, which stay staged.
        """
        start = where(array).pointer
        base, nbytes = (int(v) for v in ask("cuMemGetAddressRange", start))
        try:
            handle = ask("cuIpcGetMemHandle", base)
            raw = ctypes.string_at(int(handle.getPtr()), 64).hex()
            message = {"handle": raw, "nbytes": nbytes, "inner": start - base}
        except DeviceError as e:
            message = {"refused": str(e)}
        said = [m for m, _ in self._group.exchange(message)]
        self._refuse(said)
        peers = []
        for q, theirs in enumerate(said):
            if q == self.rank:
                peers.append(base)
                continue
            opened = api().CUipcMemHandle()
            ctypes.memmove(int(opened.getPtr()), bytes.fromhex(theirs["handle"]), 64)
            peers.append(int(ask("cuIpcOpenMemHandle", opened, 1)))
            self._opened.append(peers[-1])
        self._registered.append(
            Registered(
                base=base,
                nbytes=nbytes,
                identity=_identity(start),
                peers=tuple(peers),
            )
        )

    def _refuse(self, said: Sequence[Any]) -> None:
        for q, theirs in enumerate(said):
            if "refused" in theirs:
                raise CallError(
                    f"rank {q}: this array cannot be registered ({theirs['refused']}); "
                    "it works staged, or take memory from comm.empty()"
                )
        if len({m["inner"] for m in said}) != 1:
            raise CallError(
                f"arrays begin {[m['inner'] for m in said]} bytes into their "
                "allocations; want the same on every rank, or comm.empty()"
            )

    def close(self) -> None:
        """Close the peers' registered allocations."""
        for start in self._opened:
            with contextlib.suppress(DeviceError):
                ask("cuIpcCloseMemHandle", start)
        self._opened.clear()
        self._registered.clear()


def _identity(address: int) -> int:
    attribute = api().CUpointer_attribute.CU_POINTER_ATTRIBUTE_BUFFER_ID
    return int(ask("cuPointerGetAttribute", attribute, address))


def local_rank(group: Group) -> int:
    """Return this rank's number on its host, from whoever started it."""
    for name in ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID"):
        if name in os.environ:
            return int(os.environ[name])
    return group.rank
