"""The compiled interpreter, as sessions use it: loaded by a process's first."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.errors import CallError, StrettoError
from stretto.executors import Launch, SameArrays
from stretto.executors.cpu.running.encode import KernelOf
from stretto.fabric.jit.loading import are_kept, load
from stretto.program.elements import Operator, storage
from stretto.trace import MONOTONIC

__all__ = ["Interpreter", "interpreter", "is_kept"]

_MODULES = (
    "stretto.executors.cpu.running.interpreter",
    "stretto.executors.cpu.running.kernels",
    "stretto.fabric.jit.same",
)
_TURNS = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreter:
    """What walks the tables of calls."""

    launcher: Callable[[NDArray[np.int64], Callable[[int], None]], Launch]
    """Makes what runs a table; what sees a call to its end gets its `Status`."""
    resume: Callable[[int], int]
    """Goes on with the call of a table, given by its address; returns a `Status`."""
    address: Callable[[Any], int]
    """Returns where an array's data begin."""
    kernel_of: KernelOf
    same_arrays: SameArrays
    """See `Session`."""
    spin_ns: float
    """What one turn of a spin takes."""


def is_kept() -> bool:
    """Return whether it loads at once: it need not be compiled."""
    return are_kept(*_MODULES)


@functools.cache
def interpreter() -> Interpreter:
    """Return it; MissingExtraError: nothing can be compiled here."""
    walking, kernels, same = load("executor 'cpu'", *_MODULES)
    probe = np.zeros(1)
    if walking.address(probe) != probe.ctypes.data:
        raise StrettoError(
            "arrays keep their data where executor 'cpu' does not expect it; "
            "want CPython with NumPy's usual arrays"
        )
    start = MONOTONIC.now_us()
    walking.spin(_TURNS)
    spin_ns = (MONOTONIC.now_us() - start) / _TURNS * 1e3
    return Interpreter(
        launcher=walking.launcher,
        resume=walking.resume,
        address=walking.address,
        kernel_of=functools.partial(_kernel_of, kernels),
        same_arrays=same.same_arrays,
        spin_ns=max(spin_ns, 0.1),
    )


def _kernel_of(
    kernels: Any, dtype: str, op: Operator, srcs: int, divide: tuple[int, ...],
    streaming: tuple[bool, ...],
) -> int:  # fmt: skip
    """Return the address of a compiled kernel."""
    if srcs == 1 and {*divide} == {1}:
        # Copies care for the size of an element only.
        dtype, op = f"uint{8 * min(storage(dtype).itemsize, 8)}", Operator.SUM
    elif not kernels.supports(dtype):
        raise CallError(f"{dtype}: this processor does not convert it; want F16C")
    op = Operator.SUM if op is Operator.AVG else op
    found: int = kernels.address_of(
        kernels.Kernel(
            dtype=dtype, op=op, num_srcs=srcs, divide=divide, streaming=streaming
        )
    )
    return found
