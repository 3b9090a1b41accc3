"""A GPU's part in transfers: memory that peers map, and copies on streams.

Runs that are long, or lie so that many of them are one, are left to the copy engines,
which take no SM; short ones are moved by one kernel that reads where they lie.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.errors import CallError, DeviceError
from stretto.executors.cuda.codegen.abi import Kernel
from stretto.executors.cuda.codegen.compile import compile_kernel
from stretto.executors.cuda.device.driver import (
    api,
    ask,
    attempt,
    capturing,
    current_stream,
    here,
    open_device,
)
from stretto.executors.cuda.device.sharing import Imports, describe
from stretto.executors.cuda.launching.kernels import Loaded, enqueue
from stretto.executors.cuda.transfers.lane import CopyLane
from stretto.executors.cuda.transfers.text import THREADS, TextKey, kernel_of, shape_of
from stretto.executors.cuda.words import MOST_AXES, RUNS

ENGINE_BYTES = 512 << 10
"""Bytes of a piece from which copy engines move it, by default: a copy costs an engine
1.1 us (benchmarks/results/gpu_transfer_h200x4_202611.md)."""
_MOST_PIECES = 4096
"""Pieces that copy engines are given for one transfer, at most."""
_BLOCKS_PER_SM = 8
_DEPTH = MOST_AXES
_TURNS = 16
"""Bytes that a kernel counts in, where it raises a word."""
_SHORTEST = 4096
"""Bytes of a run down to which few long ones are divided among more threads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Boxes:
    """What is moved: boxes that are alike but for where they begin."""

    src_box: NDArray[np.int64]
    """The address of each box's first element, of chunk 0."""
    dst_box: NDArray[np.int64]
    src_chunk: NDArray[np.int64]
    """How far each chunk begins from chunk 0."""
    dst_chunk: NDArray[np.int64]
    axes: tuple[tuple[int, int, int], ...]
    """The slowest first: how many, bytes apart at the source, at the destination."""
    run: int
    """Elements of a run."""
    src_dtype: str
    dst_dtype: str
    src_item: int
    dst_item: int

    @property
    def box_runs(self) -> int:
        """Return how many runs a box has."""
        return math.prod(count for count, _, _ in self.axes)

    @property
    def runs(self) -> int:
        """Return how many there are."""
        return self.box_runs * len(self.src_box) * len(self.src_chunk)

    @property
    def nbytes(self) -> int:
        """Return how many bytes are stored."""
        return self.runs * self.run * self.dst_item


def pieces(boxes: Boxes) -> tuple[NDArray[np.int64], ...]:
    """Return sources, destinations and bytes of all runs; neighbours are one piece."""
    src = boxes.src_chunk[:, None] + boxes.src_box[None, :]
    dst = boxes.dst_chunk[:, None] + boxes.dst_box[None, :]
    for count, a, b in boxes.axes:
        steps = np.arange(count, dtype=np.int64)
        src, dst = src[..., None] + a * steps, dst[..., None] + b * steps
    src, dst = src.reshape(-1), dst.reshape(-1)
    nbytes = boxes.run * boxes.src_item
    joins = (np.diff(src) == nbytes) & (np.diff(dst) == nbytes)
    first = np.flatnonzero(np.concatenate([[True], ~joins]))
    counts = np.diff(np.append(first, len(src)))
    return src[first], dst[first], counts * nbytes


def _divided(boxes: Boxes, groups: int) -> Boxes:
    """Return the same boxes, with long runs cut where they are fewer than groups.

    A group of threads moves a run: alone, it would move a long one at its own pace.
    """
    if boxes.src_dtype != boxes.dst_dtype or len(boxes.axes) >= _DEPTH:
        return boxes
    parts, run = 1, boxes.run
    while (
        boxes.runs * parts < groups
        and run % 2 == 0
        and run // 2 * boxes.src_item >= _SHORTEST
        and (run // 2 * boxes.src_item) % 16 == 0
    ):
        parts, run = 2 * parts, run // 2
    if parts == 1:
        return boxes
    step = run * boxes.src_item
    return replace(boxes, axes=(*boxes.axes, (parts, step, step)), run=run)


_NONE = np.zeros(0, np.int64)
_NOTHING = Boxes(
    src_box=_NONE, dst_box=_NONE, src_chunk=_NONE, dst_chunk=_NONE, axes=(), run=16,
    src_dtype="uint8", dst_dtype="uint8", src_item=1, dst_item=1,
)  # fmt: skip
"""What moves nothing, and raises a word."""


class GpuMover:
    """The GPU of this process, as transfers use it."""

    def __init__(self) -> None:
        self.device = open_device(here())
        self._imports = Imports(self.device)
        self._functions: dict[TextKey, tuple[Any, Any, Kernel]] = {}
        self._loaded: dict[tuple[TextKey, int], Loaded] = {}

    def describe(
        self, address: int, nbytes: int
    ) -> tuple[dict[str, Any], tuple[int, ...]]:
        """Return what peers must know to map memory, and descriptors for them."""
        told, fds = describe(address, nbytes)
        if told["kind"] == "none":
            raise DeviceError(f"this memory cannot be shared: {told['why']}")
        return {**told, "uuid": self.device.uuid}, fds

    def open(self, told: Mapping[str, Any], fds: Sequence[int]) -> int:
        """Return where a peer's memory is mapped here."""
        self.device.enter()
        return self._imports.open(told, fds)

    def close_all(self) -> None:
        """Give all of peers' memory back."""
        self.device.enter()
        self._imports.close_all()

    def register(self, address: int, nbytes: int) -> None:
        """Let the GPU reach host memory without help, at the speed of the link."""
        self.device.enter()
        flags = int(api().CU_MEMHOSTREGISTER_PORTABLE)
        try:
            ask("cuMemHostRegister", address, nbytes, flags)
        except DeviceError as e:
            if "ALREADY_REGISTERED" not in str(e):
                raise

    def unregister(self, address: int) -> None:
        """Undo that."""
        attempt("cuMemHostUnregister", address)

    def stream(self) -> int:
        """Return the stream that the caller works on."""
        return current_stream(self.device.ordinal)

    def lane(self) -> CopyLane:
        """Return a stream of our own."""
        return CopyLane(self.device)

    def prepare(self, boxes: Boxes, *, by: str = "", word: int = 0) -> GpuMove:
        """Prepare to move boxes: `by` "engines" or "kernel", or as it is faster.

        The word at an address, if there is one, gets the number of the call when the
        bytes are there.
        """
        self.device.enter()
        if boxes.runs >= 1 << 31:
            raise CallError(f"{boxes.runs} runs at once; want fewer than 2^31")
        converts = boxes.src_dtype != boxes.dst_dtype
        if not by:
            found = None if converts else pieces(boxes)
            few = found is not None and len(found[0]) <= _MOST_PIECES
            large = found is not None and found[2].min() >= ENGINE_BYTES
            by = "engines" if few and large else "kernel"
        if by == "engines":
            if converts:
                raise CallError("copy engines do not convert elements")
            return _ByEngines(self, boxes, word)
        return _ByKernel(self, boxes, word)

    def loaded(self, shape: TextKey, grid: int) -> Loaded:
        """Return a kernel of a shape, compiled and loaded once, for so many blocks.

        It begins while the kernel before it ends, and waits for that on the device.
        """
        known = self._loaded.get((shape, grid))
        if known is not None:
            return known
        found = self._functions.get(shape)
        if found is None:
            kernel = kernel_of(shape, blocks=self.blocks)
            image = compile_kernel(kernel, arch=self.device.arch)
            module = ask("cuModuleLoadData", image)
            function = ask("cuModuleGetFunction", module, kernel.symbol.encode())
            found = self._functions[shape] = module, function, kernel
        module, function, kernel = found
        waits = self.device.arch >= (9, 0)
        made = Loaded(module, function, replace(kernel, grid=grid), waits=waits)
        self._loaded[shape, grid] = made
        return made

    @property
    def blocks(self) -> int:
        """Return how many blocks fill the GPU."""
        return self.device.num_sms * _BLOCKS_PER_SM


class GpuMove:
    """One transfer's copies, enqueued as often as wanted."""

    by = ""

    def __init__(self, mover: GpuMover, boxes: Boxes) -> None:
        self.mover, self.boxes = mover, boxes
        self._event: Any = None
        self._closed = False

    def enqueue(self, stream: int) -> None:
        """Enqueue the copies on a stream; a graph that is captured keeps them."""
        raise NotImplementedError

    def record(self, stream: int) -> None:
        """Note where the stream has come to, for `done` and `wait`."""
        if self._event is None:
            disable = int(api().CUevent_flags.CU_EVENT_DISABLE_TIMING)
            self._event = ask("cuEventCreate", disable)
        ask("cuEventRecord", self._event, api().CUstream(stream))

    def done(self) -> bool:
        """Return whether the copies that were recorded have been done, or closed."""
        event = self._event
        if self._closed or event is None:
            return self._closed  # else it is not even recorded
        driver = api()
        self.mover.device.require_context()
        (error,) = driver.cuEventQuery(event)
        if error == driver.CUresult.CUDA_ERROR_NOT_READY:
            return False
        if int(error):
            raise DeviceError(f"cuEventQuery: {error.name}")
        return True

    def close(self) -> None:
        """Free what it needs on the GPU; its copies have been done."""
        self._closed = True
        event, self._event = self._event, None
        if event is not None:
            attempt("cuEventDestroy", event)


class _ByKernel(GpuMove):
    """One kernel; the tables lie on the GPU, behind each other."""

    by = "kernel"

    def __init__(self, mover: GpuMover, boxes: Boxes, word: int = 0) -> None:
        boxes = _divided(boxes, mover.blocks * (THREADS // 32))
        super().__init__(mover, boxes)
        axes = boxes.axes[-_DEPTH:]
        nbytes = boxes.run * boxes.src_item
        places = [
            *boxes.src_box.tolist(), *boxes.dst_box.tolist(),
            *(step for _, a, b in axes for step in (a, b)),
            int(np.bitwise_or.reduce(boxes.src_chunk)),  # as odd as the oddest of them
            int(np.bitwise_or.reduce(boxes.dst_chunk)),
        ]  # fmt: skip
        shape = shape_of(
            nbytes, len(axes), places, boxes.src_dtype, boxes.dst_dtype, boxes.src_item
        )
        self._raises = bool(word)
        one = len(boxes.src_box) == len(boxes.src_chunk) == 1
        shape = replace(shape, raises=self._raises, one=one)
        units = boxes.run if not shape.vector else nbytes // shape.vector
        starts, turns = self._tables(boxes, one=one)
        first = (0, 0)
        if one:
            src, dst = boxes.src_box + boxes.src_chunk, boxes.dst_box + boxes.dst_chunk
            first = int(src[0]), int(dst[0])
        fill = [(1, 0, 0)] * (_DEPTH - len(axes))
        self._parameters = np.zeros(1, RUNS)
        self._parameters[0] = (
            *starts, boxes.runs, len(boxes.src_box), boxes.box_runs, units,
            *zip(*fill, *axes, strict=True), *first, turns, word,
        )  # fmt: skip
        self._argument = (ctypes.c_void_p * 1)(self._parameters.ctypes.data)
        groups = THREADS // shape.lanes
        grid = max(1, min(mover.blocks, -(-boxes.runs // groups)))
        self._loaded = mover.loaded(shape, grid)

    def _tables(self, boxes: Boxes, *, one: bool) -> tuple[list[int], int]:
        """Return where the tables begin on the GPU, and what calls are counted in."""
        tables = [boxes.src_chunk, boxes.dst_chunk, boxes.src_box, boxes.dst_box]
        tables = [_NONE] * 4 if one else tables
        joined = np.concatenate([*tables, np.zeros(_TURNS // 8, np.int64)])
        self._table = int(ask("cuMemAlloc", joined.nbytes))
        ask("cuMemcpyHtoD", self._table, joined.ctypes.data, joined.nbytes)
        ends = np.cumsum([0, *(8 * len(t) for t in tables)]) + self._table
        *starts, turns = ends.tolist()
        return starts, turns

    def enqueue(self, stream: int) -> None:
        """Enqueue the kernel."""
        if not self.boxes.runs and not self._raises:
            return
        at = ctypes.addressof(self._argument)
        enqueue(self.mover.device, self._loaded, stream, at)

    def close(self) -> None:
        """Free the tables."""
        super().close()
        if self._table:
            attempt("cuMemFree", self._table)
            self._table = 0


class _ByEngines(GpuMove):
    """Copies by engines: a batch where the driver takes one, else one by one."""

    by = "engines"

    def __init__(self, mover: GpuMover, boxes: Boxes, word: int = 0) -> None:
        super().__init__(mover, boxes)
        self._raise = _ByKernel(mover, _NOTHING, word) if word else None
        src, dst, sizes = pieces(boxes)
        self._src = np.ascontiguousarray(src)
        self._dst = np.ascontiguousarray(dst)
        self._sizes = np.ascontiguousarray(sizes)
        self._single = list(
            zip(dst.tolist(), src.tolist(), sizes.tolist(), strict=True)
        )

    def enqueue(self, stream: int) -> None:
        """Enqueue the copies, and what raises a word after them."""
        self._copy(stream)
        if self._raise is not None:
            self._raise.enqueue(stream)

    def close(self) -> None:
        """Free what they need."""
        super().close()
        if self._raise is not None:
            self._raise.close()

    def _copy(self, stream: int) -> None:
        batch = _batch()
        if batch is None or stream in (0, 1, 2) or capturing(stream):
            handle = api().CUstream(stream)
            for dst, src, nbytes in self._single:
                ask("cuMemcpyAsync", dst, src, nbytes, handle)
            return
        error = batch(
            int(self._dst.ctypes.data), int(self._src.ctypes.data),
            int(self._sizes.ctypes.data), len(self._sizes), stream,
        )  # fmt: skip
        if error:
            raise DeviceError(f"cuMemcpyBatchAsync of {len(self._sizes)}: {error}")


@functools.cache
def _batch() -> Any:
    """Return how to enqueue a batch of copies, where the driver has that."""
    if int(ask("cuDriverGetVersion")) < 13000:
        return None
    address, _ = ask("cuGetProcAddress", b"cuMemcpyBatchAsync", 13000, 0)
    if not int(address):
        return None
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    kind = ctypes.CFUNCTYPE(
        ctypes.c_int, pointer, pointer, pointer, size, pointer, pointer, size, pointer
    )
    call = kind(int(address))
    attributes = api().CUmemcpyAttributes()
    orders = api().CUmemcpySrcAccessOrder
    attributes.srcAccessOrder = orders.CU_MEMCPY_SRC_ACCESS_ORDER_STREAM
    first = (ctypes.c_size_t * 1)(0)

    def batch(dst: int, src: int, sizes: int, count: int, stream: int) -> int:
        at = int(attributes.getPtr()), ctypes.addressof(first)
        return int(call(dst, src, sizes, count, *at, 1, stream))

    return batch
