"""What is compared: something that can do a case, on buffers that all share."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from stretto.bench.timing import Call
from stretto.errors import CallError
from stretto.program.collectives import Array, storage

BUFFERS = ("bytearray", "numpy", "torch", "cupy", "numba")
_POISON = 0x5B
_FORMATS = dict(zip("bBhHiIlLfd?", "bBhHiIqQfd?", strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class CallBuffer:
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


NOWHERE = CallBuffer(given=None, host=None)
"""Where whoever is measured has memory of its own that others do not see."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedCall:
    """A call, bound to its arguments; where its input goes, and where its result is."""

    call: Call
    x: CallBuffer = NOWHERE
    out: CallBuffer = NOWHERE
    note: str = ""
    settle: Call | None = None
    """Wait for what was only enqueued."""
    captured: Call | None = None
    """What follows when the call has been captured into a graph (collective)."""
    rounds: Callable[[int], list[float]] | None = None
    """Makes so many calls, where they are made; returns the microseconds of each."""
    fill: Call | None = None
    """Puts the input in, and elsewhere nothing, where both buffers are nowhere."""
    wrong: Callable[[], str] | None = None
    """Returns what is wrong with the result there; nothing when all is right."""


class Library:
    """What others have: where it runs, and why it is not there."""

    DEVICES: ClassVar[tuple[str, ...]] = ()
    NEEDS: ClassVar[tuple[str, str]] = ("", "")
    """The module that must be installed, and how to get it."""

    @classmethod
    def missing(cls) -> str:
        """Return why it is not there, or nothing."""
        module, how = cls.NEEDS
        there = not module or importlib.util.find_spec(module) is not None
        return "" if there else f"no {module}: {how}"

    @classmethod
    def environment(cls, path: str = "") -> Mapping[str, str]:
        """Return what must be set before anybody starts, for a way of a transfer."""
        return {}


class Contender(Library):
    """One side of a comparison, open on every rank. It says no by a `CallError`."""

    ALONE: ClassVar[bool] = False
    """Whether it would disturb others: it then has a run of its own."""

    @classmethod
    def open(cls, setup: Setup) -> Contender:
        """Return it on all ranks (collective)."""
        raise NotImplementedError

    def prepare(self, case: Any, x: CallBuffer, out: CallBuffer) -> PreparedCall:
        """Bind a case to buffers (collective); nothing need be in them yet."""
        raise NotImplementedError

    def start(self, case: Any, x: CallBuffer, out: CallBuffer) -> Call:
        """Return what starts a call, and gives something to `wait` for."""
        raise CallError("this peer starts no calls to be waited for later")

    def close(self) -> None:
        """Give back what it holds."""


def host_buffer(kind: str, array: Array, dtype: str) -> CallBuffer:
    """Return a buffer of a kind over the memory of an array, where that is possible."""
    if kind == "numpy":
        return CallBuffer(given=array, host=array)
    if kind == "bytearray":
        code = _FORMATS.get(storage(dtype).char)
        if code is None or dtype == "bfloat16":
            raise CallError(f"a bytearray has no elements of {dtype}; want float32...")
        raw = bytearray(max(array.nbytes, array.itemsize))  # none is not cast
        whole: Any = memoryview(raw)
        view = whole.cast(code)[: array.size]
        return CallBuffer(
            given=view, host=np.frombuffer(raw, array.dtype)[: array.size]
        )
    raise CallError(f"--buffer {kind} does not lie on the CPU; want bytearray or numpy")
