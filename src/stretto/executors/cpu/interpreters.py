"""Which interpreter runs the tables: the compiled one, or NumPy without Numba."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.collectives import Operator, storage
from stretto.errors import CallError, StrettoError, UnknownNameError
from stretto.executors import Launch
from stretto.executors.cpu.encode import KernelOf

__all__ = ["INTERPRETERS", "Interpreter", "interpreter_named", "missing"]

INTERPRETERS = ("numba", "numpy")


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreter:
    """An interpreter of tables."""

    name: str
    launcher: Callable[[NDArray[np.int64], Callable[[int], None]], Launch]
    """Makes what runs a table; what sees a call to its end gets its `Status`."""
    resume: Callable[[int], int]
    """Goes on with the call of a table, given by its address; returns a `Status`."""
    address: Callable[[int], int]
    """Returns where an array's data begin, given its id()."""
    kernel_of: KernelOf
    same_arrays: Callable[[Any, str, Any, str], Callable[[Any, Any], bool] | None]
    """See `Session`."""
    spin_ns: float
    """What one turn of a spin takes."""


@functools.cache
def missing() -> str:
    """Return why there is no compiled interpreter here, or nothing."""
    try:
        import numba
    except ImportError as e:
        return f"{e}: pip install 'stretto[cpu]'"
    return "NUMBA_DISABLE_JIT is set" if numba.config.DISABLE_JIT else ""


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
    if engine.address(id(probe)) != probe.ctypes.data:
        raise StrettoError(
            "arrays keep their data where executor 'cpu' does not expect it; "
            "want CPython with NumPy's usual arrays"
        )
    return engine


@functools.cache
def _numba() -> Interpreter:
    from stretto.executors.cpu import interpreter, kernels
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
        address=_entry(interpreter.address),
        kernel_of=kernel_of,
        same_arrays=same_arrays,
        spin_ns=max(spin_ns, 0.1),
    )


def _entry(function: Any) -> Any:
    """Return what Numba compiled, without its dispatcher, which takes 55 ns a call.

    There is one signature, all of integers, so there is nothing to dispatch.
    """
    (compiled,) = getattr(function, "overloads", {}).values() or (None,)
    return getattr(compiled, "entry_point", None) or function


@functools.cache
def _numpy() -> Interpreter:
    from stretto.executors.cpu import interpreter_numpy as slow

    return Interpreter(
        name="numpy",
        launcher=slow.launcher,
        resume=slow.resume,
        address=slow.address,
        kernel_of=slow.kernel_of,
        same_arrays=lambda *_: None,
        spin_ns=400.0,
    )
