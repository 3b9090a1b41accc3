"""Other people's GPU memory, shared between processes: by legacy IPC, or in pieces.

What cudaMalloc returned has an IPC handle. What was mapped by cuMem (torch's expandable
segments) consists of pieces of physical memory, each exported as a file descriptor and
mapped by a peer in the same order. An address says nothing about either: it is used
again. The driver numbers allocations, and a number is never used again.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from stretto.errors import DeviceError
from stretto.executors.cuda.device.driver import Device, api, ask, attempt

MOST_PIECES = 64
"""Pieces of one array that are passed as descriptors; with more, it stays staged."""


@contextlib.contextmanager
def received(said: Iterable[tuple[Any, Sequence[int]]]) -> Iterator[None]:
    """Close the descriptors that came with an exchange, whatever is done with them."""
    try:
        yield
    finally:
        for _, descriptors in said:
            for fd in descriptors:
                os.close(fd)


def identity(address: int) -> int:
    """Return the driver's number of the allocation at an address.

    Every call on a registered array asks this.
    """
    driver = api()
    key = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_BUFFER_ID
    return _word(key, address)


def describe(start: int, nbytes: int) -> tuple[dict[str, Any], tuple[int, ...]]:
    """Return what peers must know to map memory, and descriptors that go with it.

    Memory that cannot be shared is described by the reason.
    """
    fds: list[int] = []
    try:
        if _attribute("IS_LEGACY_CUDA_IPC_CAPABLE", start):
            return _by_handle(start), ()
        pieces = []
        at = start
        while at < start + nbytes:
            if len(fds) == MOST_PIECES:
                raise DeviceError(f"memory of more than {MOST_PIECES} pieces")
            base = _attribute("MAPPING_BASE_ADDR", at)
            size = _attribute("MAPPING_SIZE", at)
            if not base <= at < base + size:
                raise DeviceError(f"no memory is mapped at {at:#x}")
            fds.append(_export(at))
            pieces.append(size)
            at = base + size
        inner = start - _attribute("MAPPING_BASE_ADDR", start)
        found = {"kind": "fd", "pieces": pieces, "inner": inner}
    except DeviceError as e:
        for fd in fds:
            os.close(fd)
        return {"kind": "none", "why": str(e)}, ()
    return found, tuple(fds)


def _by_handle(start: int) -> dict[str, Any]:
    base, _ = (int(v) for v in ask("cuMemGetAddressRange", start))
    handle = ask("cuIpcGetMemHandle", base)
    raw = ctypes.string_at(int(handle.getPtr()), 64).hex()
    return {"kind": "ipc", "handle": raw, "inner": start - base}


def _export(address: int) -> int:
    kind = api().CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    handle = ask("cuMemRetainAllocationHandle", address)
    try:
        return int(ask("cuMemExportToShareableHandle", handle, kind, 0))
    finally:
        ask("cuMemRelease", handle)


def _attribute(name: str, address: int) -> int:
    key = getattr(api().CUpointer_attribute, f"CU_POINTER_ATTRIBUTE_{name}")
    try:
        return int(ask("cuPointerGetAttribute", key, address))
    except TypeError:  # bindings that do not know what kind of value it is
        return _word(key, address)


def _word(key: Any, address: int) -> int:
    """Return an attribute that is a word, asked of the driver by its own address."""
    found = ctypes.c_uint64(0)
    error = _asker(api())(ctypes.addressof(found), int(key), address)
    if error:
        raise DeviceError(f"cuPointerGetAttribute({key.name}): error {error}")
    return found.value


@functools.lru_cache(maxsize=1)
def _asker(driver: Any) -> Callable[[int, int, int], int]:
    """Return a driver's `cuPointerGetAttribute`: where to put it, what, of what."""
    where, _ = ask("cuGetProcAddress", b"cuPointerGetAttribute", 4000, 0)
    pointer = ctypes.c_void_p
    kind = ctypes.CFUNCTYPE(ctypes.c_int, pointer, ctypes.c_int, ctypes.c_uint64)
    found: Callable[[int, int, int], int] = kind(int(where))
    return found


class Imports:
    """Peers' memory mapped here; one IPC handle is opened once, however often used."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._handles: dict[str, list[int]] = {}
        """Address and number of users, by handle."""
        self._ranges: dict[int, tuple[int, list[tuple[int, int]]]] = {}
        """Reserved bytes and mapped pieces, by address."""

    def open(self, told: Mapping[str, Any], fds: Sequence[int]) -> int:
        """Return where a peer's array is mapped; descriptors are left to the caller."""
        inner = int(told["inner"])
        if told["kind"] == "ipc":
            return self._open_handle(str(told["handle"])) + inner
        return self._map([int(size) for size in told["pieces"]], fds) + inner

    def close(self, told: Mapping[str, Any], address: int) -> None:
        """Give back what `open` returned."""
        if told["kind"] == "ipc":
            entry = self._handles[str(told["handle"])]
            entry[1] -= 1
            if not entry[1]:
                del self._handles[str(told["handle"])]
                ask("cuIpcCloseMemHandle", entry[0])
        else:
            self._unmap(address - int(told["inner"]))

    def close_all(self) -> None:
        """Give everything back."""
        for address, _ in self._handles.values():
            attempt("cuIpcCloseMemHandle", address)
        self._handles.clear()
        for base in list(self._ranges):
            self._unmap(base)

    def _open_handle(self, raw: str) -> int:
        entry = self._handles.get(raw)
        if entry is None:
            handle = api().CUipcMemHandle()
            ctypes.memmove(int(handle.getPtr()), bytes.fromhex(raw), 64)
            entry = self._handles[raw] = [int(ask("cuIpcOpenMemHandle", handle, 1)), 0]
        entry[1] += 1
        return entry[0]

    def _map(self, sizes: list[int], fds: Sequence[int]) -> int:
        driver = api()
        total = sum(sizes)
        base = int(ask("cuMemAddressReserve", total, 0, 0, 0))
        mapped: list[tuple[int, int]] = []
        self._ranges[base] = total, mapped
        try:
            kind = driver.CUmemAllocationHandleType
            access = driver.CUmemAccessDesc()
            access.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
            access.location.id = self._device.ordinal
            access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
            at = base
            for size, fd in zip(sizes, fds, strict=True):
                handle = ask(
                    "cuMemImportFromShareableHandle",
                    fd,
                    kind.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                )
                try:
                    ask("cuMemMap", at, size, 0, handle, 0)
                finally:
                    ask("cuMemRelease", handle)  # the mapping keeps the memory alive
                mapped.append((at, size))
                ask("cuMemSetAccess", at, size, [access], 1)
                at += size
        except DeviceError:
            self._unmap(base)
            raise
        return base

    def _unmap(self, base: int) -> None:
        total, mapped = self._ranges.pop(base)
        for start, size in mapped:
            attempt("cuMemUnmap", start, size)
        attempt("cuMemAddressFree", base, total)
