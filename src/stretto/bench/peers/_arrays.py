"""Memory of other libraries: tensors, CuPy's arrays, Numba's device arrays."""

from __future__ import annotations

import importlib
import os
from typing import Any

import numpy as np

from stretto.bench.contender import CallBuffer
from stretto.bench.peers._torch import require_torch
from stretto.bench.timing import Call, run_batch
from stretto.errors import CallError, MissingExtraError
from stretto.program.collectives import Array, storage

_COPY_BYTES, _FLUSH_BYTES = 256 << 20, 128 << 20
_SIDE = 1024
"""Rows of the matrices that are multiplied beside a collective."""


def open_arrays(kind: str, comm: Any, *, registered: bool) -> Any:
    """Return the arrays of a kind."""
    if kind == "host_torch":
        return HostTensors()
    if kind in ("torch", "cupy", "numba"):
        return GpuArrays(kind, comm, registered=registered)
    raise CallError(f"no arrays of {kind} on a GPU; want torch, cupy or numba")


class HostTensors:
    """CPU tensors over NumPy memory."""

    def buffer(self, array: Array, dtype: str) -> CallBuffer:
        """Return a tensor over an array's memory."""
        torch = require_torch()
        tensor = torch.from_numpy(array)
        if dtype == "bfloat16":
            tensor = tensor.view(torch.bfloat16)
        return CallBuffer(given=tensor, host=array, tensor=tensor)


class GpuArrays:
    """Arrays on this rank's GPU. All work goes to one stream that is not the default.

    Memory is PyTorch's, or the communicator's; CuPy and Numba look at it as theirs.
    """

    def __init__(self, kind: str, comm: Any, *, registered: bool) -> None:
        torch = require_torch()
        if not torch.cuda.is_available():
            raise MissingExtraError("no GPU that PyTorch can use; want --device cpu")
        self._torch, self._comm, self._kind = torch, comm, kind
        self._registered = registered
        local = int(os.environ.get("LOCAL_RANK", comm.rank))
        torch.cuda.set_device(local % torch.cuda.device_count())
        torch.zeros(1, device="cuda")  # the context that sessions then find
        self._view = _viewer(kind)
        self._stream = torch.cuda.Stream()
        torch.cuda.set_stream(self._stream)
        self._flushed: Any = None

    @property
    def arch(self) -> tuple[int, int]:
        """Return the GPU's compute capability."""
        major, minor = self._torch.cuda.get_device_capability()
        return int(major), int(minor)

    def settle(self) -> None:
        """Wait for the GPU, and raise what our kernels met."""
        self._torch.cuda.synchronize()
        self._comm.check()

    def timed(self, call: Call, turns: int, cold: bool) -> float:
        """Return microseconds a call, by events on our stream.

        From cold caches, each call is timed by itself, after its GPU's second-level
        cache has been overwritten.
        """
        torch = self._torch
        if not cold:
            return self._between(call, turns)
        if self._flushed is None:
            self._flushed = torch.empty(_FLUSH_BYTES, dtype=torch.uint8, device="cuda")
        spent = 0.0
        for _ in range(turns):
            self._flushed.fill_(1)
            spent += self._between(call, 1)
        return spent / turns

    def _between(self, call: Call, turns: int, *stream: Any) -> float:
        """Return microseconds a call, on the current stream or another."""
        torch = self._torch
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        marks[0].record(*stream)
        for _ in range(turns):
            call()
        marks[1].record(*stream)
        torch.cuda.synchronize()
        return float(marks[0].elapsed_time(marks[1])) * 1e3 / turns

    def compute_for(self, duration_us: float) -> Call:
        """Return what computes about so long on a stream of its own."""
        torch = self._torch
        side = torch.cuda.Stream()
        a = torch.ones((_SIDE, _SIDE), dtype=torch.bfloat16, device="cuda")
        out = torch.empty_like(a)

        def once() -> None:
            torch.mm(a, a, out=out)

        with torch.cuda.stream(side):
            once()
            torch.cuda.synchronize()
            turns = max(1, round(duration_us / max(self._between(once, 50, side), 0.5)))

        def compute() -> None:
            with torch.cuda.stream(side):
                for _ in range(turns):
                    once()

        return compute

    def copy_gbps(self) -> float:
        """Return the rate at which this GPU copies to the next, all at once."""
        torch = self._torch
        after = (torch.cuda.current_device() + 1) % torch.cuda.device_count()
        source = torch.zeros(_COPY_BYTES, dtype=torch.uint8, device="cuda")
        target = torch.empty_like(source, device=f"cuda:{after}")

        def copy() -> None:
            target.copy_(source)

        return (
            _COPY_BYTES
            / min(run_batch(copy, 4, settle=torch.cuda.synchronize) for _ in "123")
            / 1e3
        )

    def empty(self, count: int, dtype: str) -> Any:
        """Return memory for so many elements (collective when registered)."""
        torch = self._torch
        if self._registered:
            array = self._comm.empty(count, dtype, device="cuda")
            return torch.from_dlpack(array)
        return torch.zeros(count, dtype=getattr(torch, dtype), device="cuda")

    def buffer(self, tensor: Any, dtype: str) -> CallBuffer:
        """Return a part of that memory as what the caller would pass."""
        return self.wrap(self._torch, tensor, self._view(tensor), dtype)

    @staticmethod
    def wrap(torch: Any, tensor: Any, given: Any, dtype: str) -> CallBuffer:
        """Return a tensor's memory as a buffer; `given` is what a caller passes."""
        raw = tensor.view(torch.uint8) if tensor.numel() else tensor

        def put(values: Array) -> None:
            if values.size:
                raw.copy_(_there(torch, values, raw.device))
                torch.cuda.synchronize()

        def fill(byte: int) -> None:
            raw.fill_(byte)
            torch.cuda.synchronize()

        def same(values: Array) -> bool:
            there = _there(torch, values, raw.device)
            return raw.numel() == there.numel() and bool(torch.equal(raw, there))

        def take() -> Array:
            torch.cuda.synchronize()
            if not tensor.numel():
                return np.zeros(0, storage(dtype))
            found: Array = raw.cpu().numpy().view(storage(dtype))
            return found

        return CallBuffer(
            given=given,
            host=None,
            tensor=tensor,
            put=put,
            take=take,
            fill=fill if raw.numel() and dtype != "bool" else None,  # 0x5b is no truth
            same=same,
        )

    def capture(self, call: Call, calls: int) -> Call:
        """Make a graph of several calls; return what replays it.

        Not by `torch.cuda.graph`, which collects garbage and empties caches first.
        """
        torch = self._torch
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            for _ in range(calls):
                call()
        finally:
            graph.capture_end()
        torch.cuda.synchronize()
        replay: Call = graph.replay
        return replay


_kept: dict[int, tuple[Array, Any]] = {}
"""What was last compared or put on the GPU: checks come with the same data again."""
_MOST_KEPT = 4


def _there(torch: Any, values: Array, device: Any) -> Any:
    """Return an array's bytes on a GPU."""
    found = _kept.get(id(values))
    if found is not None and found[0] is values:
        return found[1]
    flat = np.ascontiguousarray(values).ravel().view(np.uint8)
    there = torch.from_numpy(flat.copy()).to(device)
    while len(_kept) >= _MOST_KEPT:
        del _kept[next(iter(_kept))]
    _kept[id(values)] = (values, there)
    return there


def _viewer(kind: str) -> Any:
    """Return what turns a tensor into an array of that kind, over the same memory."""
    if kind == "torch":
        return lambda tensor: tensor
    name = {"cupy": "cupy", "numba": "numba.cuda"}[kind]
    try:
        module = importlib.import_module(name)
    except ImportError as e:
        raise MissingExtraError(f"--buffer {kind}: no {name}: {e}") from None
    if kind == "cupy":
        return module.from_dlpack
    return module.as_cuda_array
