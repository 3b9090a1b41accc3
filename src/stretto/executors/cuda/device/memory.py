"""One slab of GPU memory per rank and communicator, mapped by every peer.

A slab is a range of addresses. The same offset means the same thing on every rank, so
`peers[q] + offset` is what rank q calls `base + offset`. Physical memory is exported
as file descriptors (cuMem); where that is refused, the slab is one allocation shared
by legacy CUDA IPC, and cannot grow.

What peers will write to is zeroed, and the zeroing waited for, *before* anything is
exchanged: a fast peer must not find its first signal wiped out.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping, Sequence
from typing import Any

from stretto.errors import CallError, DeviceError
from stretto.executors import Group, hosts_of
from stretto.executors.cuda.device.driver import Device, api, ask, attempt
from stretto.executors.cuda.device.sharing import received
from stretto.fabric.variables import number_of

RANGE_BYTES = 1 << 37
"""Addresses reserved for a slab; only what it grows to is memory."""
GROWTH_BYTES = 64 << 20
SHARE_GPU = "STRETTO_CUDA_SHARE_GPU"
"""Tests set this to let several ranks use one GPU."""


class Slab:
    """This rank's memory and where its peers' lies."""

    def __init__(self, device: Device, group: Group) -> None:
        self.device = device
        self._group = group
        hosts = hosts_of(group)
        self._near = [host == hosts[group.rank] for host in hosts]
        self.base = 0
        self.peers: list[int] = []
        """Everybody's slab as it is mapped here; 0: that rank is on another host."""
        self.nbytes = 0
        self.kept = 0
        """So many bytes from its beginning on are mapped as long as it is open."""
        self.keeps_addresses = False
        """Whether nothing is to lie where it lay, for a while, once it is closed."""
        self.is_whole = True
        """Whether all of it is memory, and not given back."""
        self.kind = ""
        self._mapped: list[tuple[int, int]] = []
        self._reserved: list[int] = []
        self._opened: list[int] = []
        self._allocated = 0

    @property
    def can_grow(self) -> bool:
        """Return whether more memory can be added."""
        return self.kind == "fd"

    def offset(self, address: int, nbytes: int = 1) -> int | None:
        """Return the offset of an address, or None when not all lies here."""
        inner = address - self.base
        return inner if 0 <= inner < self.nbytes - nbytes + 1 else None

    def close(self) -> None:
        """Unmap and free everything; peers' own mappings stay theirs."""
        attempt("cuCtxSynchronize")
        for start, nbytes in self._mapped:
            attempt("cuMemUnmap", start, nbytes)
        free = self._reserved
        if self.keeps_addresses:
            free = self.device.left.leave(free)
        for start in free:
            attempt("cuMemAddressFree", start, RANGE_BYTES)
        for start in self._opened:
            attempt("cuIpcCloseMemHandle", start)
        if self._allocated:
            attempt("cuMemFree", self._allocated)
        self._mapped, self._reserved, self._opened = [], [], []
        self._allocated = self.nbytes = 0

    def grow(self, nbytes: int) -> int:
        """Add at least so many bytes (collective); return where they begin.

        The new bytes are the same offsets on every rank, and zero.
        """
        if not self.can_grow:
            raise CallError(
                f"the slab of {self.nbytes} bytes is full and IPC memory cannot grow; "
                "set STRETTO_CUDA_SLAB_BYTES"
            )
        start = self.nbytes
        nbytes = self._round(max(nbytes, GROWTH_BYTES))
        self._map(self.base, start, nbytes, self._create(nbytes), own=True)
        ask("cuMemsetD8", self.base + start, 0, nbytes)
        ask("cuCtxSynchronize")
        descriptor = self._export(self.base + start)
        try:
            said = self._group.exchange({"grow": nbytes}, (descriptor,))
        finally:
            os.close(descriptor)
        with received(said):
            self._map_peers(said, start, nbytes)
        self.nbytes += nbytes
        return start

    def why_not_given(self) -> str:
        """Return why it cannot be given back for a while, or ""."""
        if self.can_grow:
            return ""
        return "GPU memory that is shared by legacy IPC stays where it is"

    def give(self) -> None:
        """Unmap all but what is kept, here; it is free when every rank has.

        Addresses stay: what is mapped there later is what they mean.
        """
        kept = set(self.peers)
        for start, nbytes in self._mapped:
            if start not in kept:
                ask("cuMemUnmap", start, nbytes)
        self._mapped = [m for m in self._mapped if m[0] in kept]
        self.is_whole = False

    def take(self) -> None:
        """Map what was given back, zero, on every rank or on none (collective)."""
        start, nbytes, why = self.kept, self.nbytes - self.kept, ""
        fds: tuple[int, ...] = ()
        try:
            self._map(self.base, start, nbytes, self._create(nbytes), own=True)
            ask("cuMemsetD8", self.base + start, 0, nbytes)
            ask("cuCtxSynchronize")
            fds = (self._export(self.base + start),)
        except DeviceError as e:
            why = f"rank {self._group.rank}: {nbytes >> 20} MB of GPU memory: {e}"
        try:
            said = self._group.exchange({"take": why}, fds)
        finally:
            for fd in fds:
                os.close(fd)
        with received(said):
            refused = next((m["take"] for m, _ in said if m["take"]), "")
            if not refused:
                self._map_peers(said, start, nbytes)
        if refused:
            self.give()
            raise CallError(f"resume: {refused}; it is suspended still: free some")
        self.is_whole = True

    def open_fd(self, nbytes: int, kept: int) -> tuple[dict[str, Any], tuple[int, ...]]:
        """Create the first memory, two pieces of it; return what to tell the peers."""
        pieces = self._round(kept), self._round(nbytes - self._round(kept))
        self.base, self.kept = self._reserve(), kept
        for start, piece in zip((0, pieces[0]), pieces, strict=True):
            self._map(self.base, start, piece, self._create(piece), own=True)
        self._zero(sum(pieces))
        fds = tuple(self._export(self.base + start) for start in (0, pieces[0]))
        return {"kind": "fd", "nbytes": sum(pieces), "pieces": pieces}, fds

    def open_ipc(self, nbytes: int) -> dict[str, Any]:
        """Allocate the slab for legacy IPC; return what to tell the peers."""
        self.base = self._allocated = int(ask("cuMemAlloc", nbytes))
        self._zero(nbytes)
        handle = ask("cuIpcGetMemHandle", self.base)
        raw = ctypes.string_at(int(handle.getPtr()), 64).hex()
        return {"kind": "ipc", "nbytes": nbytes, "handle": raw}

    def adopt_fds(self, said: Sequence[tuple[Mapping[str, Any], Any]]) -> None:
        """Map the peers' first memory."""
        nbytes = _same([int(m["nbytes"]) for m, _ in said])
        self.peers = [
            self.base if q == self._group.rank else self._reserve() if near else 0
            for q, near in enumerate(self._near)
        ]
        first, second = said[self._group.rank][0]["pieces"]
        self._map_peers(said, 0, first)
        self._map_peers(said, first, second, 1)
        self.nbytes, self.kind, self.kept = nbytes, "fd", first

    def adopt_ipc(self, said: Sequence[tuple[Mapping[str, Any], Any]]) -> None:
        """Open the peers' allocations."""
        lazily = 1  # the only flag there is: peer access is enabled on opening
        self.nbytes, self.kind = _same([int(m["nbytes"]) for m, _ in said]), "ipc"
        for q, (message, _) in enumerate(said):
            if q == self._group.rank:
                self.peers.append(self.base)
                continue
            if not self._near[q]:
                self.peers.append(0)
                continue
            handle = api().CUipcMemHandle()
            ctypes.memmove(int(handle.getPtr()), bytes.fromhex(message["handle"]), 64)
            self.peers.append(int(ask("cuIpcOpenMemHandle", handle, lazily)))
            self._opened.append(self.peers[-1])

    def _zero(self, nbytes: int) -> None:
        ask("cuMemsetD8", self.base, 0, nbytes)
        ask("cuCtxSynchronize")

    def _properties(self) -> Any:
        driver = api()
        wanted = driver.CUmemAllocationProp()
        wanted.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        wanted.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        wanted.location.id = self.device.ordinal
        wanted.requestedHandleTypes = _fd_type()
        return wanted

    def _round(self, nbytes: int) -> int:
        flag = api().CUmemAllocationGranularity_flags
        least = flag.CU_MEM_ALLOC_GRANULARITY_RECOMMENDED
        grain = int(ask("cuMemGetAllocationGranularity", self._properties(), least))
        return -(-nbytes // grain) * grain

    def _create(self, nbytes: int) -> Any:
        return ask("cuMemCreate", nbytes, self._properties(), 0)

    def _reserve(self) -> int:
        start = int(ask("cuMemAddressReserve", RANGE_BYTES, 0, 0, 0))
        self._reserved.append(start)
        return start

    def _map(
        self, base: int, start: int, nbytes: int, handle: Any, *, own: bool
    ) -> None:
        """Map memory at an offset of a range, for this device alone."""
        driver = api()
        ask("cuMemMap", base + start, nbytes, 0, handle, 0)
        self._mapped.append((base + start, nbytes))
        access = driver.CUmemAccessDesc()
        access.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        access.location.id = self.device.ordinal
        access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        try:
            ask("cuMemSetAccess", base + start, nbytes, [access], 1)
        except DeviceError as e:
            if own:
                raise
            raise DeviceError(
                f"GPU {self.device.uuid} cannot reach a peer's memory: {e}; "
                "see stretto doctor"
            ) from e
        finally:
            ask("cuMemRelease", handle)  # the mapping keeps the memory alive

    def _map_peers(
        self,
        said: Sequence[tuple[Mapping[str, Any], Sequence[int]]],
        start: int,
        nbytes: int,
        nth: int = 0,
    ) -> None:
        """Map what each peer has given, as its descriptor of that number."""
        for q, (_, descriptors) in enumerate(said):
            if q != self._group.rank and self._near[q]:
                fd = descriptors[nth]
                handle = ask("cuMemImportFromShareableHandle", fd, _fd_type())
                self._map(self.peers[q], start, nbytes, handle, own=False)

    def _export(self, address: int) -> int:
        handle = ask("cuMemRetainAllocationHandle", address)
        try:
            return int(ask("cuMemExportToShareableHandle", handle, _fd_type(), 0))
        finally:
            ask("cuMemRelease", handle)


def open_slab(device: Device, group: Group, nbytes: int, *, kept: int) -> Slab:
    """Open a slab for a group (collective): file descriptors if everybody can.

    Its first `kept` bytes stay, the rest may be given back.
    """
    slab = Slab(device, group)
    fds: tuple[int, ...] = ()
    refused = ""
    try:
        message, fds = slab.open_fd(nbytes, kept)
    except DeviceError as e:
        message, refused = {"kind": "none", "nbytes": 0}, str(e)
    try:
        said = group.exchange({**message, "uuid": device.uuid}, fds)
    finally:
        for fd in fds:
            os.close(fd)
    with received(said):
        _check_uuids([str(m["uuid"]) for m, _ in said])
        if all(m["kind"] == "fd" for m, _ in said):
            slab.adopt_fds(said)
            return slab
    slab.close()
    slab = Slab(device, group)
    nbytes = number_of("STRETTO_CUDA_SLAB_BYTES", nbytes + (1 << 30), nbytes)
    try:
        slab.adopt_ipc(group.exchange(slab.open_ipc(nbytes)))
    except DeviceError as e:
        raise DeviceError(
            f"no way to share GPU memory: {e}; before that: {refused or 'a peer'}"
        ) from e
    return slab


def _fd_type() -> Any:
    return api().CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR


def _same(sizes: Sequence[int]) -> int:
    if len(set(sizes)) != 1:
        raise CallError(f"ranks opened slabs of {list(sizes)} bytes; want one size")
    return sizes[0]


def may_share() -> bool:
    """Return whether several ranks may use one GPU."""
    return os.environ.get(SHARE_GPU) == "1"


def device_uuids(said: Sequence[str]) -> dict[str, list[int]]:
    """Return which ranks use each GPU."""
    users: dict[str, list[int]] = {}
    for rank, uuid in enumerate(said):
        users.setdefault(uuid, []).append(rank)
    return users


def _check_uuids(said: Sequence[str]) -> None:
    shared = {u: r for u, r in device_uuids(said).items() if len(r) > 1}
    if shared and not may_share():
        uuid, ranks = next(iter(shared.items()))
        raise DeviceError(
            f"ranks {ranks} use one GPU ({uuid}): a waiting kernel would keep its peer "
            "from running. Give each rank a GPU: torch.cuda.set_device(local_rank), or "
            "CUDA_VISIBLE_DEVICES"
        )
