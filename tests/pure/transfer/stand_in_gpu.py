"""A GPU that is this process's own memory: its copies are done when they are asked for.

A stream is a number. What was enqueued happens some looks later, one after the other,
so that whoever does not wait for it is found out.
"""

import mmap
import threading

import numpy as np

from stretto.errors import CallError, DeviceError
from stretto.executors.cuda.transfers.mover import pieces

LOOKS = 3


class GpuArray:
    """An array that says that it lies on a GPU."""

    def __init__(self, array):
        self.array = array

    @property
    def __cuda_array_interface__(self):
        a = self.array
        return {
            "shape": a.shape, "typestr": a.dtype.str, "version": 3,
            "data": (a.ctypes.data, False),
            "strides": None if a.flags.c_contiguous else a.strides,
        }  # fmt: skip

    @property
    def shape(self):
        return self.array.shape

    @property
    def dtype(self):
        return self.array.dtype

    def __dlpack_device__(self):
        return 2, 0


class Lane:
    """A stream of its own."""

    def __init__(self, mover):
        self.stream, self.followed, self.closed = 7, [], False
        self._mover = mover

    def follow(self, stream):
        if stream == 99:
            raise CallError("a graph is captured on this stream")
        self.followed.append(stream)

    def close(self):
        self._mover.do_until(None)
        self.closed = True


class Move:
    by = "kernel"

    def __init__(self, mover, boxes):
        self._mover, self._boxes, self._looks = mover, boxes, -1
        mover.count(1)

    def enqueue(self, stream):
        assert isinstance(stream, int)
        if self._mover.fails:
            raise DeviceError("cuLaunchKernel: CUDA_ERROR_LAUNCH_FAILED")
        self._mover.queue.append(self)
        self._looks = LOOKS

    def record(self, stream):
        self._mover.recorded.append(stream)

    def done(self):
        if self._looks > 0:
            self._looks -= 1
            return False
        self._mover.do_until(self)
        return True

    def _do(self):
        b = self._boxes
        runs = _alike(b)
        for src, dst, n in zip(*runs, strict=True):
            self._mover.reach(src, n * b.src_item)
            self._mover.reach(dst, n * b.dst_item)
            came = _memory(src, n * b.src_item)
            if b.src_dtype != b.dst_dtype:
                kinds = {"float32": np.float32, "float16": np.float16}
                wide = came.view(kinds[b.src_dtype]).astype(kinds[b.dst_dtype])
                came = wide.view(np.uint8)
            _memory(dst, n * b.dst_item)[:] = came

    def close(self):
        self._mover.count(-1)


def _alike(b):
    if b.src_dtype == b.dst_dtype:
        src, dst, nbytes = pieces(b)
        return src.tolist(), dst.tolist(), (nbytes // b.src_item).tolist()
    src = (b.src_chunk[:, None] + b.src_box[None, :]).reshape(-1)
    dst = (b.dst_chunk[:, None] + b.dst_box[None, :]).reshape(-1)
    for count, x, y in b.axes:
        steps = np.arange(count)
        src = (src[:, None] + x * steps).reshape(-1)
        dst = (dst[:, None] + y * steps).reshape(-1)
    return src.tolist(), dst.tolist(), [b.run] * len(src)


def _memory(at, nbytes):
    import ctypes

    return np.asarray(memoryview((ctypes.c_uint8 * nbytes).from_address(at)))


class Mover:
    """`reach` refuses memory that is neither on the GPU nor pinned."""

    def __init__(self):
        self.queue, self.recorded, self.lanes = [], [], []
        self.pinned, self.device = {}, {}
        self.fails, self.open_moves = False, 0
        self._lock = threading.RLock()

    def count(self, more):
        """Count moves that are not closed."""
        with self._lock:
            self.open_moves += more

    def do_until(self, last):
        """Do what was enqueued, up to one; without one, all of it."""
        with self._lock:
            while last in self.queue or (last is None and self.queue):
                self.queue.pop(0)._do()

    def empty(self, shape, dtype):
        """Return memory of the GPU."""
        dtype = np.dtype(dtype)
        nbytes = int(np.prod(shape)) * dtype.itemsize
        memory = np.frombuffer(mmap.mmap(-1, max(1, nbytes)), np.uint8)[:nbytes]
        self.device[int(memory.ctypes.data)] = nbytes
        return GpuArray(memory.view(dtype).reshape(shape))

    def reach(self, at, nbytes):
        some = [*self.pinned.items(), *self.device.items()]
        assert any(a <= at and at + nbytes <= a + n for a, n in some), (
            "the GPU reaches memory that is not pinned"
        )

    def describe(self, address, nbytes):
        raise DeviceError("this memory cannot be shared: it is a stand-in's")

    def close_all(self):
        return

    def register(self, address, nbytes):
        self.pinned[address] = max(nbytes, self.pinned.get(address, 0))

    def unregister(self, address):
        self.pinned.pop(address)

    def stream(self):
        return 5

    def lane(self):
        self.lanes.append(Lane(self))
        return self.lanes[-1]

    def prepare(self, boxes, *, by=""):
        return Move(self, boxes)
