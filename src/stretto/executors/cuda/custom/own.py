"""Compile and launch a kernel of the user's that takes channels.

Any other way will do as well (cuda.core, CuPy, torch's inline loader, Triton): channels
are addresses, and the headers lie in `stretto.include_path()`.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import numpy as np

from stretto.arrays import pointer
from stretto.errors import CallError
from stretto.executors.cuda.codegen.abi import Kernel
from stretto.executors.cuda.device.driver import current_stream, stream_handle
from stretto.executors.cuda.launching.kernels import enqueue
from stretto.executors.cuda.launching.services import SessionServices


class OwnKernel:
    """A kernel of `extern "C"` name `kernel.symbol`, loaded; calling it enqueues it.

    Arguments are passed in the order of the kernel's parameters: integers, booleans,
    arrays (their address), NumPy scalars and ctypes values as they are.
    """

    def __init__(self, session: SessionServices, kernel: Kernel) -> None:
        """Compile it."""
        self._session = session
        self._loaded = session.load_kernel(kernel)

    def __call__(self, *arguments: Any, stream: Any = None) -> None:
        """Enqueue the kernel on the caller's stream, and return at once."""
        session = self._session
        session.watch.check()
        device = session.device
        if stream is None:
            handle = current_stream(device.ordinal)
        else:
            handle = stream_handle(stream)
        values = [_value(one) for one in arguments]
        many = max(1, len(values))
        array = _pointers(many)(*[ctypes.addressof(one) for one in values])
        at = ctypes.addressof(array)
        enqueue(device, self._loaded, handle, at, early=False)


@functools.cache
def _pointers(many: int) -> type[ctypes.Array[ctypes.c_void_p]]:
    return ctypes.c_void_p * many


def _value(one: Any) -> Any:
    """Return an argument as something in memory, at least as long as its parameter."""
    if isinstance(one, ctypes._SimpleCData | ctypes.Structure):
        return one
    if isinstance(one, np.generic):
        return ctypes.create_string_buffer(one.tobytes(), max(8, one.nbytes))
    if isinstance(one, float):
        raise CallError(
            f"kernel argument {one}: float or double? want numpy.float32({one}) or "
            "numpy.float64"
        )
    if isinstance(one, int):  # little endian: serves parameters of 1 to 8 bytes
        return ctypes.c_uint64(one & (1 << 64) - 1)
    return ctypes.c_uint64(pointer(one))
