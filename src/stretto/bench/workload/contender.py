"""What is compared: something that can make a call, on buffers that all share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from stretto.bench.workload.cases import Case
from stretto.bench.workload.timing import Call
from stretto.collectives import Array, storage
from stretto.errors import CallError

__all__ = ["BUFFERS", "Buffer", "Contender", "Prepared", "Setup", "host_buffer"]

BUFFERS = ("bytearray", "numpy", "torch", "cupy", "numba")
_POISON = 0x5B
_FORMATS = dict(zip("bBhHiIlLfd?", "bBhHiIqQfd?", strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffer:
    """Memory that contenders are given, and a way to look at it from the host."""

    given: Any
    """What a caller would pass: a NumPy array, a memoryview, a tensor..."""
    host: Array | None
    """The same memory as an array; None on a GPU, where the two below copy."""
    tensor: Any = None
    """The same memory as a tensor of PyTorch's, where it is one: for peers inside it.
    Other libraries' arrays lack some types, and tell them as raw bytes."""
    put: Callable[[Array], None] | None = None
    take: Callable[[], Array] | None = None
    fill: Callable[[int], None] | None = None
    """Puts the same into every byte, without copying from the host."""
    same: Callable[[Array], bool] | None = None
    """Compares bit for bit where the memory is."""

    def write(self, values: Array) -> None:
        """Put values in."""
        if self.put is not None:
            self.put(values)
        elif self.host is not None:
            self.host[...] = values

    def read(self) -> Array:
        """Return what is in it."""
        if self.take is not None:
            return self.take()
        assert self.host is not None, "a buffer lies somewhere"
        return self.host

    def equals(self, want: Array) -> bool:
        """Return whether it certainly holds these very bits."""
        return self.same is not None and self.same(want)

    def poison(self, want: Array) -> None:
        """Fill it with what no result is, nothing like what is wanted."""
        if not want.size:
            return
        if want.dtype.kind == "b":
            self.write(~want)
            return
        if self.fill is not None:
            self.fill(_POISON)
            return
        bits = np.full(want.nbytes, _POISON, np.uint8)
        self.write(bits.view(want.dtype))


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What a contender must know to open."""

    rank: int
    num_ranks: int
    meet: str
    """A folder that the ranks share, empty when they start."""
    device: str = "cpu"
    largest: int = 0
    """Bytes of the largest buffer that there will be."""
    registered: bool = False
    """Whether buffers are memory of `comm.empty()`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A call, bound to its arguments; where its input goes, and where its result is."""

    call: Call
    x: Buffer
    out: Buffer
    note: str = ""
    settle: Call | None = None
    """Wait for what was only enqueued."""
    captured: Call | None = None
    """What follows when the call has been captured into a graph (collective)."""


class Contender(Protocol):
    """One side of a comparison, open on every rank. It says no by a `CallError`.

    Where calls can be started and waited for later, it has `start` too: it takes what
    `prepare` does, and returns what starts a call and gives something to `wait` for.
    """

    def prepare(self, case: Case, x: Buffer, out: Buffer) -> Prepared:
        """Bind a case to buffers (collective); nothing need be in them yet."""

    def close(self) -> None:
        """Give back what it holds."""


def host_buffer(kind: str, array: Array, dtype: str) -> Buffer:
    """Return a buffer of a kind over the memory of an array, where that is possible."""
    if kind == "numpy":
        return Buffer(given=array, host=array)
    if kind == "bytearray":
        code = _FORMATS.get(storage(dtype).char)
        if code is None or dtype == "bfloat16":
            raise CallError(f"a bytearray has no elements of {dtype}; want float32...")
        raw = bytearray(max(array.nbytes, array.itemsize))  # none is not cast
        whole: Any = memoryview(raw)
        view = whole.cast(code)[: array.size]
        return Buffer(given=view, host=np.frombuffer(raw, array.dtype)[: array.size])
    raise CallError(f"--buffer {kind} does not lie on the CPU; want bytearray or numpy")
