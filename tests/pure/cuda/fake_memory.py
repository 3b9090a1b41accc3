"""The memory of the fake driver: pages of this process, which other ranks map too."""

# ruff: noqa: N802  (the driver's own names)

from __future__ import annotations

import ctypes
import mmap
import os
import threading

from cuda.bindings import driver as real

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int,
    ctypes.c_long,
)  # fmt: skip
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
OK = real.CUresult.CUDA_SUCCESS
NO = real.CUresult.CUDA_ERROR_NOT_SUPPORTED
FIXED, NORESERVE, PRIVATE, SHARED, ANONYMOUS = 0x10, 0x4000, 2, 1, 0x20
GRAIN = 2 << 20
_host = []
"""Host memory, kept for ever: sessions that no test closed have threads that use it."""


class FakeMemory:
    """What the executor asks of a driver's memory."""

    def __init__(self, vmm):
        self.vmm = vmm
        self.lock = threading.RLock()
        self.kept = []
        self.maps = []
        self.others = {}
        self.numbers = 100
        self.private = False
        self.opened = []

    # Memory
    def cuMemAddressReserve(self, nbytes, align, address, flags):
        flags = PRIVATE | ANONYMOUS | NORESERVE
        return OK, _libc.mmap(None, nbytes, 0, flags, -1, 0)

    def cuMemAddressFree(self, start, nbytes):
        _libc.munmap(start, nbytes)
        return (OK,)

    def cuMemGetAllocationGranularity(self, properties, flag):
        return OK, GRAIN

    def cuMemCreate(self, nbytes, properties, flags):
        if not self.vmm:
            return NO, None
        assert nbytes % GRAIN == 0, "the driver refuses other sizes"
        fd = os.memfd_create("fake")
        os.ftruncate(fd, nbytes)
        return OK, fd

    def cuMemMap(self, start, nbytes, offset, handle, flags):
        prot = mmap.PROT_READ | mmap.PROT_WRITE
        got = _libc.mmap(start, nbytes, prot, SHARED | FIXED, handle, 0)
        assert got == start, "mapped elsewhere"
        with self.lock:
            self.maps.append((start, nbytes, os.dup(handle)))
        return (OK,)

    def cuMemUnmap(self, start, nbytes):
        flags = PRIVATE | ANONYMOUS | NORESERVE | FIXED
        _libc.mmap(start, nbytes, 0, flags, -1, 0)
        with self.lock:
            gone = [m for m in self.maps if start <= m[0] < start + nbytes]
            self.maps = [m for m in self.maps if m not in gone]
        for *_, handle in gone:
            os.close(handle)
        return (OK,)

    def forget(self):
        """Close what is still known of mapped memory."""
        while self.maps:
            os.close(self.maps.pop()[2])

    def cuMemSetAccess(self, start, nbytes, access, count):
        return (OK,)

    def cuMemRelease(self, handle):
        os.close(handle)
        return (OK,)

    def cuMemRetainAllocationHandle(self, address):
        handle = next(h for s, n, h in self.maps if s <= address < s + n)
        return OK, os.dup(handle)

    def cuMemExportToShareableHandle(self, handle, kind, flags):
        if self.private:
            return NO, None
        return OK, os.dup(handle)

    def cuMemImportFromShareableHandle(self, fd, kind):
        return OK, os.dup(fd)

    def cuMemAlloc(self, nbytes):
        buffer = ctypes.create_string_buffer(nbytes)
        self.kept.append(buffer)
        return OK, ctypes.addressof(buffer)

    def cuMemFree(self, start):
        return (OK,)

    # Memory of somebody else's, by kind: "malloc", "pieces" (cuMem), or "private"
    def foreign(self, nbytes, kind):
        """Return the address of a new allocation, zero, which only `kind` shares."""
        pieces = []
        if kind == "malloc":
            _, start = self.cuMemAlloc(nbytes)
            pieces.append((start, nbytes))
        else:
            total = -(-nbytes // GRAIN) * GRAIN
            _, start = self.cuMemAddressReserve(total, 0, 0, 0)
            for at in range(start, start + total, GRAIN):
                _, handle = self.cuMemCreate(GRAIN, None, 0)
                self.cuMemMap(at, GRAIN, 0, handle, 0)
                self.cuMemRelease(handle)
                pieces.append((at, GRAIN))
        self.replace(start, pieces, kind)
        return start

    def replace(self, start, pieces=None, kind=None):
        """Number what lies at an address anew, as if it had been freed and taken."""
        with self.lock:
            old = self.others.get(start, (None, pieces, kind))
            self.numbers += 1
            self.others[start] = (self.numbers, pieces or old[1], kind or old[2])

    def _foreign(self, address):
        for number, pieces, kind in self.others.values():
            for start, nbytes in pieces:
                if start <= address < start + nbytes:
                    return number, start, nbytes, kind
        return None

    def cuPointerGetAttribute(self, attribute, address):
        found = self._foreign(address)
        if found is None:
            return real.CUresult.CUDA_ERROR_INVALID_VALUE, None
        number, start, nbytes, kind = found
        names = real.CUpointer_attribute
        return OK, {
            names.CU_POINTER_ATTRIBUTE_BUFFER_ID: number,
            names.CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE: kind == "malloc",
            names.CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR: start,
            names.CU_POINTER_ATTRIBUTE_MAPPING_SIZE: nbytes,
        }[attribute]

    def cuMemGetAddressRange(self, address):
        _, start, nbytes, _ = self._foreign(address)
        return OK, start, nbytes

    def cuIpcGetMemHandle(self, start):
        handle = real.CUipcMemHandle()
        ctypes.memmove(int(handle.getPtr()), start.to_bytes(8, "little"), 8)
        return OK, handle

    def cuIpcOpenMemHandle(self, handle, flags):
        start = int.from_bytes(ctypes.string_at(int(handle.getPtr()), 8), "little")
        self.opened.append(start)
        return OK, start

    def cuIpcCloseMemHandle(self, start):
        self.opened.remove(start)
        return (OK,)

    def cuMemsetD8(self, start, value, nbytes):
        ctypes.memset(start, value, nbytes)
        return (OK,)

    def cuMemcpyHtoD(self, to, source, nbytes):
        ctypes.memmove(to, source, nbytes)
        return (OK,)

    def cuMemcpyDtoH(self, to, source, nbytes):
        ctypes.memmove(to, source, nbytes)
        return (OK,)

    def cuMemHostAlloc(self, nbytes, flags):
        _host.append(ctypes.create_string_buffer(nbytes))
        return OK, ctypes.addressof(_host[-1])

    def cuMemHostGetDevicePointer(self, start, flags):
        return OK, start

    def cuMemFreeHost(self, start):
        return (OK,)
