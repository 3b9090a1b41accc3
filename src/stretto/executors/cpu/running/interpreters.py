"""Which interpreter runs the tables: the compiled one, or NumPy without Numba."""

from __future__ import annotations

import functools
import importlib.util
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.collectives import Operator, storage
from stretto.errors import CallError, StrettoError, UnknownNameError
from stretto.executors import Launch, SameArrays
from stretto.executors.cpu.running.encode import KernelOf
from stretto.jit import missing

__all__ = [
    "INTERPRETERS",
    "Interpreter",
    "interpreter_named",
    "is_loaded",
    "lacks_compiler",
]

INTERPRETERS = ("numba", "numpy")


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreter:
    """An interpreter of tables."""

    name: str
    launcher: Callable[[NDArray[np.int64], Callable[[int], None]], Launch]
    """Makes what runs a table; what sees a call to its end gets its `Status`."""
    resume: Callable[[int], int]
    """Goes on with the call of a table, given by its address; returns a `Status`."""
    address: Callable[[Any], int]
    """Returns where an array's data begin."""
    kernel_of: KernelOf
    same_arrays: SameArrays | None
    """See `Session`."""
    spin_ns: float
    """What one turn of a spin takes."""


def lacks_compiler() -> bool:
    """Return whether there is no Numba here, without importing it: that takes long."""
    return importlib.util.find_spec("numba") is None or bool(
        os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0")
    )


def is_loaded() -> bool:
    """Return whether this process has the compiled interpreter already."""
    return _numba.cache_info().currsize > 0


def interpreter_named(name: str | None, *, warn: bool = True) -> Interpreter:
    """Return an engine; by default the fastest there is. One rank warns for all."""
    if name not in (None, *INTERPRETERS):
        raise UnknownNameError.among("interpreter", str(name), INTERPRETERS)
    if name is None and missing():
        name = "numpy"
        if warn:
            warnings.warn(
                f"executor 'cpu' runs its slow NumPy interpreter: {missing()}",
                RuntimeWarning,
                stacklevel=3,
            )
    engine = _numpy() if name == "numpy" else _numba()
    probe = np.zeros(1)
    if engine.address(probe) != probe.ctypes.data:
        raise StrettoError(
            "arrays keep their data where executor 'cpu' does not expect it; "
            "want CPython with NumPy's usual arrays"
        )
    return engine


@functools.cache
def _numba() -> Interpreter:
    from stretto.executors.cpu.running import interpreter, kernels
    from stretto.jit.same import same_arrays
    from stretto.trace import MONOTONIC

    def kernel_of(
        dtype: str, op: Operator, srcs: int, divide: tuple[int, ...], streaming: bool
    ) -> int:
        if srcs == 1 and {*divide} == {1}:
            # Copies care for the size of an element only.
            dtype, op = f"uint{8 * min(storage(dtype).itemsize, 8)}", Operator.SUM
        elif not kernels.supports(dtype):
            raise CallError(
                f"{dtype}: this processor does not convert it; want F16C, or "
                "open_session(group, interpreter='numpy') on every rank"
            )
        op = Operator.SUM if op is Operator.AVG else op
        return kernels.address_of(
            kernels.Kernel(
                dtype=dtype, op=op, num_srcs=srcs, divide=divide, streaming=streaming
            )
        )

    turns = 2000
    start = MONOTONIC.now_us()
    interpreter.spin(turns)
    spin_ns = (MONOTONIC.now_us() - start) / turns * 1e3
    return Interpreter(
        name="numba",
        launcher=interpreter.launcher,
        resume=interpreter.resume,
        address=interpreter.address,
        kernel_of=kernel_of,
        same_arrays=same_arrays,
        spin_ns=max(spin_ns, 0.1),
    )


@functools.cache
def _numpy() -> Interpreter:
    from stretto.executors.cpu.running import interpreter_numpy as slow

    return Interpreter(
        name="numpy",
        launcher=slow.launcher,
        resume=slow.resume,
        address=slow.address,
        kernel_of=slow.kernel_of,
        same_arrays=None,
        spin_ns=400.0,
    )
