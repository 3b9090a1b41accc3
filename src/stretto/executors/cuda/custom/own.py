"""Compile and launch a kernel of the user's that takes channels.

Any other way will do as well (cuda.core, CuPy, torch's inline loader, Triton): channels
are addresses, and the headers lie in `stretto.include_path()`.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from stretto.arrays import pointer
from stretto.errors import CallError
from stretto.executors.cuda.codegen.abi import Kernel
from stretto.executors.cuda.device.driver import api, ask, current_stream, stream_handle
from stretto.executors.cuda.launching.services import SessionServices


class OwnKernel:
    """A kernel of `extern "C"` name `kernel.symbol`, loaded; calling it enqueues it.

    Arguments are passed in the order of the kernel's parameters: integers, booleans,
    arrays (their address), NumPy scalars and ctypes values as they are.
    """

    def __init__(self, session: SessionServices, kernel: Kernel) -> None:
        self._session = session
        self._function = session.load_kernel(kernel).function
        self._shape = (kernel.grid, 1, 1, kernel.threads, 1, 1, 0)

    def __call__(self, *arguments: Any, stream: Any = None) -> None:
        """Enqueue the kernel on the caller's stream, and return at once."""
        session = self._session
        session.watch.check()
        session.device.require_context()
        handle = (
            current_stream(session.device.ordinal)
            if stream is None
            else stream_handle(stream)
        )
        values = [_value(one) for one in arguments]
        array = (ctypes.c_void_p * max(1, len(values)))(
            *(ctypes.addressof(v) for v in values)
        )
        shape, where = self._shape, ctypes.addressof(array)
        ask(
            "cuLaunchKernel",
            self._function,
            *shape,
            api().CUstream(handle),
            where,
            0,
        )


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
