"""Memory of other libraries: tensors, CuPy's arrays, Numba's device arrays."""

from __future__ import annotations

import importlib
import os
from typing import Any

import numpy as np

from stretto.bench.contender import Buffer
from stretto.bench.peers._torch import require_torch
from stretto.bench.timing import Call, run_batch
from stretto.collectives import Array, storage
from stretto.errors import CallError, MissingExtraError

__all__ = ["GpuArrays", "HostTensors", "open_arrays"]

_COPY_BYTES = 256 << 20


def open_arrays(kind: str, comm: Any, *, registered: bool) -> Any:
    """Return the arrays of a kind."""
    if kind == "host_torch":
        return HostTensors()
    if kind in ("torch", "cupy", "numba"):
        return GpuArrays(kind, comm, registered=registered)
    raise CallError(f"no arrays of {kind} on a GPU; want torch, cupy or numba")


class HostTensors:
    """CPU tensors over NumPy memory."""

    def buffer(self, array: Array, dtype: str) -> Buffer:
        """Return a tensor over an array's memory."""
        torch = require_torch()
        tensor = torch.from_numpy(array)
        if dtype == "bfloat16":
            tensor = tensor.view(torch.bfloat16)
        return Buffer(given=tensor, host=array)


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

    @property
    def settle(self) -> Call:
        """Return what waits for the GPU."""
        wait: Call = self._torch.cuda.synchronize
        return wait

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
            / min(run_batch(copy, 4, settle=self.settle) for _ in "123")
            / 1e3
        )

    def empty(self, count: int, dtype: str) -> Any:
        """Return memory for so many elements (collective when registered)."""
        torch = self._torch
        if self._registered:
            array = self._comm.empty(count, dtype, device="cuda")
            return torch.from_dlpack(array)
        return torch.zeros(count, dtype=getattr(torch, dtype), device="cuda")

    def buffer(self, tensor: Any, dtype: str) -> Buffer:
        """Return a part of that memory as what the caller would pass."""
        return self.wrap(self._torch, tensor, self._view(tensor), dtype)

    @staticmethod
    def wrap(torch: Any, tensor: Any, given: Any, dtype: str) -> Buffer:
        """Return a tensor's memory as a buffer; `given` is what a caller passes."""
        raw = tensor.view(torch.uint8) if tensor.numel() else tensor

        def put(values: Array) -> None:
            if values.size:
                flat = np.ascontiguousarray(values).view(np.uint8)
                raw.copy_(torch.from_numpy(flat))
                torch.cuda.synchronize()

        def take() -> Array:
            torch.cuda.synchronize()
            if not tensor.numel():
                return np.zeros(0, storage(dtype))
            found: Array = raw.cpu().numpy().view(storage(dtype))
            return found

        return Buffer(given=given, host=None, put=put, take=take)

    def capture(self, call: Call, calls: int) -> Call:
        """Make a graph of several calls; return what replays it."""
        torch = self._torch
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(
            graph, stream=self._stream, capture_error_mode="thread_local"
        ):
            for _ in range(calls):
                call()
        torch.cuda.synchronize()
        replay: Call = graph.replay
        return replay


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
