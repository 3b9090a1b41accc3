"""A CUDA driver made of host memory, and ranks that are threads.

Addresses are real: memory is mapped by memfd, so what one rank exports another maps.
Streams are queues; an operation that waits holds its queue until it is satisfied.
"""

# ruff: noqa: N802, N815  (the driver's own names, and its types)

from __future__ import annotations

import ctypes
import os
import struct
import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
from cuda.bindings import driver as real
from cuda_fake_memory import GRAIN, OK, FakeMemory

from stretto.compiler.verify import verify_plan
from stretto.errors import CallError, CollectiveMismatch, CollectiveTimeout
from stretto.executors import Group
from stretto.executors.cuda.codegen.generate import kernel_of

__all__ = ["GRAIN", "OK", "FakeDriver", "ThreadGroup", "on_ranks", "view"]


SEEN = 100
"""Handles of GPUs that are looked at; a rank's own has the handle 0."""


class FakeDriver(FakeMemory):
    """The functions that the executor asks for; types are the real ones."""

    def __init__(self, vmm=True):
        super().__init__(vmm)
        self.launches = []
        self.by_address = []
        """Launches and events, in order, of those who call by address."""
        self.refused = {}
        """Errors of such calls, by name and second argument."""
        self.early = []
        self.before = {}
        """Nodes and edges before the next launch of each stream that is captured."""
        self.kernel_nodes, self.refuses_edges = {}, OK
        self.queues = {}
        self.who = threading.local()
        self.uuids = {}
        self.visible, self.nvlink = 8, True

    def __getattr__(self, name):
        if name.startswith("cu") and not name.startswith("cuda"):
            raise AttributeError(f"the fake driver has no {name}")
        return getattr(real, name)

    # Devices
    def cuCtxGetCurrent(self):
        return OK, 1

    def cuCtxGetDevice(self):
        return OK, 0

    def cuDevicePrimaryCtxRetain(self, device):
        return OK, 1

    def cuCtxSetCurrent(self, context):
        return (OK,)

    def cuCtxSynchronize(self):
        return (OK,)

    def cuDeviceGetCount(self):
        return OK, self.visible

    def cuDeviceGet(self, index):
        return OK, SEEN + index

    def cuDeviceGetP2PAttribute(self, attribute, one, other):
        return OK, int(self.nvlink)

    def cuDeviceGetUuid(self, device):
        rank = device - SEEN if device >= SEEN else getattr(self.who, "rank", 0)
        return OK, SimpleNamespace(bytes=bytes([self.uuids.get(rank, rank)] * 16))

    def cuDeviceGetPCIBusId(self, length, device):
        return OK, b"ffff:ff:1f.7\0"

    def cuDeviceGetName(self, length, device):
        return OK, b"Fake\0\0"

    def cuDeviceGetAttribute(self, attribute, device):
        names = real.CUdevice_attribute
        known = {
            names.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: 9,
            names.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: 132,
        }
        return OK, known.get(attribute, 0)

    def cuGetErrorString(self, error):
        return OK, b"the fake refuses"

    # Kernels
    def cuFuncGetAttribute(self, attribute, function):
        return OK, 0

    # Streams
    def cuStreamCreate(self, flags):
        with self.lock:
            self.kept.append(handle := 1000 + len(self.queues))
            self.queues[handle] = deque()
        return OK, real.CUstream(handle)

    def cuStreamDestroy(self, stream):
        return (OK,)

    def cuStreamIsCapturing(self, stream):
        return OK, real.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE

    def cuThreadExchangeStreamCaptureMode(self, mode):
        return OK, mode

    def cuEventCreate(self, flags):
        return OK, SimpleNamespace(recorded=0, done=0)

    def cuStreamGetId(self, stream):
        return OK, int(stream)

    def cuEventSynchronize(self, event):
        return (OK,)

    def cuEventQuery(self, event):
        ready = event.done >= event.recorded
        return (OK if ready else real.CUresult.CUDA_ERROR_NOT_READY,)

    def cuEventDestroy(self, event):
        return (OK,)

    def _own(self, stream):
        """Return the key of a stream: handles are each rank's own."""
        handle = int(stream)
        return handle if handle >= 1000 else (self.who.rank, handle)

    def _enqueue(self, stream, *operations):
        with self.lock:
            queue = self.queues.setdefault(self._own(stream), deque())
            queue.extend(operations)
            self._pump()
        return (OK,)

    def _pump(self):
        moved = True
        while moved:
            moved = False
            for queue in list(self.queues.values()):
                while queue and queue[0]():
                    queue.popleft()
                    moved = True

    def cuEventRecord(self, event, stream):
        event.recorded += 1
        number = event.recorded

        def record():
            event.done = max(event.done, number)
            return True

        return self._enqueue(stream, record)

    def cuStreamWaitEvent(self, stream, event, flags):
        number = event.recorded
        return self._enqueue(stream, lambda: event.done >= number)

    def cuMemcpyDtoDAsync(self, to, source, nbytes, stream):
        return self._enqueue(stream, lambda: ctypes.memmove(to, source, nbytes) or True)

    def cuMemAllocAsync(self, nbytes, stream):
        """Allocate now: queues are short."""
        return self.cuMemAlloc(nbytes)

    def cuMemFreeAsync(self, start, stream):
        """Free when the stream gets here."""
        return self._enqueue(stream, lambda: self.cuMemFree(start))

    cuMemcpyHtoDAsync = cuMemcpyDtoHAsync = cuMemcpyDtoDAsync

    def cuStreamWriteValue32(self, stream, address, value, flags):
        word = ctypes.c_uint32.from_address(int(address))
        return self._enqueue(stream, _writes(word, int(value)))

    def cuStreamWriteValue64(self, stream, address, value, flags):
        word = ctypes.c_uint64.from_address(int(address))
        return self._enqueue(stream, _writes(word, int(value)))

    def cuStreamSynchronize(self, stream):
        stop_at = time.monotonic() + 5
        while time.monotonic() < stop_at:
            with self.lock:
                self._pump()
                if not self.queues.get(self._own(stream)):
                    return (OK,)
            time.sleep(0.001)
        return (real.CUresult.CUDA_ERROR_LAUNCH_TIMEOUT,)

    def cuGetProcAddress(self, name, version, flags):
        pointer = ctypes.c_void_p
        if name == b"cuPointerGetAttribute":
            word = ctypes.c_uint64
            kind = ctypes.CFUNCTYPE(ctypes.c_int, pointer, ctypes.c_int, word)
            self.kept.append(kind(self._tell))
        elif name == b"cuStreamGetCaptureInfo":
            kind = ctypes.CFUNCTYPE(ctypes.c_int, *[pointer] * 7)
            self.kept.append(kind(self._tell_capture))
        elif name in (b"cuEventRecord", b"cuStreamWaitEvent"):
            kind = ctypes.CFUNCTYPE(ctypes.c_int, pointer, pointer, ctypes.c_uint)

            def note(*given):
                self.by_address.append((name, *given[:2]))
                return self.refused.get((name, given[1]), 0)

            self.kept.append(kind(note))
        else:
            assert name == b"cuLaunchKernelEx", "nothing else is called by address"
            kind = ctypes.CFUNCTYPE(ctypes.c_int, pointer, pointer, pointer, pointer)
            self.kept.append(kind(self._launch))
        where = ctypes.cast(self.kept[-1], pointer).value
        return OK, where, real.CUdriverProcAddressQueryResult(0)

    def _tell(self, found, attribute, address):
        """Write an attribute of memory, as a word."""
        key = real.CUpointer_attribute(attribute)
        error, value = FakeMemory.cuPointerGetAttribute(self, key, address)
        ctypes.c_uint64.from_address(found).value = value or 0
        return int(error)

    def _tell_capture(self, stream, status, number, graph, nodes, edges, count):
        """Write what the next launch of a captured stream is after: `before`."""
        known = self.before.get(stream or 0)
        ctypes.c_int.from_address(status).value = known is not None
        found = list(known or ())
        self.told = (ctypes.c_void_p * max(1, len(found)))(*(n for n, _ in found))
        self.edges = (ctypes.c_uint64 * max(1, len(found)))(*(e for _, e in found))
        ctypes.c_void_p.from_address(nodes).value = ctypes.addressof(self.told)
        ctypes.c_void_p.from_address(edges).value = ctypes.addressof(self.edges)
        ctypes.c_size_t.from_address(count).value = len(found)
        return 0

    def cuGraphNodeGetType(self, node):
        kinds = real.CUgraphNodeType
        kernel = int(node) in self.kernel_nodes
        memcpy = kinds.CU_GRAPH_NODE_TYPE_MEMCPY
        return OK, kinds.CU_GRAPH_NODE_TYPE_KERNEL if kernel else memcpy

    def cuGraphKernelNodeGetParams(self, node):
        return OK, SimpleNamespace(func=self.kernel_nodes[int(node)], kern=0)

    def cuStreamUpdateCaptureDependencies(self, stream, nodes, edges, count, flags):
        assert count == len(nodes) == len(edges), "one edge a node"
        self.before[int(stream)] = [
            (int(n), e.from_port | e.to_port << 8 | e.type << 16)
            for n, e in zip(nodes, edges, strict=True)
        ]
        return (self.refuses_edges,)

    def _launch(self, config, function, arguments, _):
        """Note a launch; the layout of `CUlaunchConfig` is cuda.h's."""
        *shape, _, stream, attrs, count = struct.unpack(
            "7IIQQI", ctypes.string_at(config, 52)
        )
        early = count and struct.unpack("I", ctypes.string_at(attrs, 4))[0] == 6
        where = ctypes.c_void_p.from_address(arguments).value
        self.launches.append((function, shape, stream, where))
        self.by_address.append((b"cuLaunchKernelEx", stream))
        self.early.append(bool(early))
        return 0


def _writes(word, value):
    def write():
        word.value = value
        return True

    return write


class ThreadGroup(Group):
    """The ranks of a group as threads of this process."""

    broken, hosts = None, ()

    def __init__(self, shared, rank, deadline_s):
        self.shared, self.rank = shared, rank
        self.num_ranks = shared.num_ranks
        self.deadline_s = deadline_s
        self.broken = shared.broken

    def exchange(self, payload, fds=()):
        """Give everybody's payload and descriptors to everybody."""
        shared = self.shared
        shared.said[self.rank] = (dict(payload), tuple(fds))
        shared.barrier.wait(timeout=20)
        answer = [
            (m, tuple(map(os.dup, f)) if q != self.rank else ())
            for q, (m, f) in enumerate(shared.said)
        ]
        shared.barrier.wait(timeout=20)
        return answer

    def fail(self, waiting_for, where, *, mismatch="", refused=""):
        """Break the group; the first fault is everybody's."""
        fault = CollectiveTimeout(f"missing {list(waiting_for)}: {where}")
        if mismatch:
            fault = CollectiveMismatch(mismatch)
        if refused:
            fault = CallError(refused)
        if self.shared.fault is None:
            self.shared.fault = fault
        self.broken[0] = 1
        return self.shared.fault


def on_ranks(fake, num_ranks, work, deadline_s=20.0):
    """Run `work(group)` in a thread for each rank; return their results."""
    shared = SimpleNamespace(
        num_ranks=num_ranks,
        said=[None] * num_ranks,
        barrier=threading.Barrier(num_ranks),
        broken=np.zeros(1, np.int64),
        fault=None,
    )

    def run(rank):
        fake.who.rank = rank
        try:
            return work(ThreadGroup(shared, rank, deadline_s))
        except BaseException:
            shared.barrier.abort()
            raise

    with ThreadPoolExecutor(num_ranks) as pool:
        started = [pool.submit(run, rank) for rank in range(num_ranks)]
        failed = [e for f in started if (e := f.exception()) is not None]
        for error in failed:
            if not isinstance(error, threading.BrokenBarrierError):
                raise error
        return [f.result() for f in started]


def view(array):
    """Return our array's memory as bytes."""
    raw = (ctypes.c_uint8 * array.nbytes).from_address(array.pointer)
    return np.ctypeslib.as_array(raw)


def generated(plan, **how):
    """Return the kernel of a plan, once it is proved."""
    return kernel_of(verify_plan(plan), **how)
