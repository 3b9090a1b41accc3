"""A quantised sum on the GPUs of one host: one kernel, over channels to every peer."""

from __future__ import annotations

import ctypes
from typing import Any

from stretto.arrays import pointer
from stretto.errors import CallError
from stretto.quantised.wire import GROUP, WIRES, Parts
from stretto.registry import texts
from stretto.runtime.calls.requests.request import Request
from stretto.runtime.calls.runner import CallRunner

__all__ = ["BLOCKS", "OPTIONS", "THREADS", "UNIT", "GpuSum", "SumCall", "memory_of",
           "text_of"]  # fmt: skip

BLOCKS, THREADS = 128, 512
UNIT = 512
"""Elements that a warp has at once."""
_ELEMENTS = {"float32": "Float32", "bfloat16": "BFloat16", "float16": "Float16"}
_FEWEST = 1 << 16
"""Elements of a part for which there is room at first."""
OPTIONS = ("--fmad=false",)


class SumCall(ctypes.Structure):
    """The kernel's parameter, as sum.cuh has it."""

    _fields_ = tuple(
        (name, ctypes.c_uint64)
        for name in ("channels", "x", "out", "count", "each", "room", "rank", "name")
    )


def memory_of(num_ranks: int, room: int) -> int:
    """Return the bytes that peers write of a rank: of each four records and a name."""
    return 4 * num_ranks * (room + room // GROUP * 4) + 8 * num_ranks


def text_of(
    dtype: str, wire: str, num_ranks: int, *, divide: bool, blocks: int, threads: int
) -> str:
    """Return the kernel's text: its numbers, then what is written by hand."""
    numbers = {"RANKS": num_ranks, "BLOCKS": blocks, "THREADS": threads}
    lines = [
        '#include "channel.cuh"', '#include "element.cuh"', "namespace stretto {",
        f"using Element = {_ELEMENTS[dtype]};",
        *(f"constexpr u32 {name} = {value};" for name, value in numbers.items()),
        f"constexpr bool WHOLE = {str(bool(WIRES[wire])).lower()};",
        f"constexpr bool DIVIDE = {str(divide).lower()};",
        "}  // namespace stretto", "",
    ]  # fmt: skip
    return "\n".join(lines) + texts("stretto.quantised", "kernels", ".cuh")["sum"]


class GpuSum:
    """A kernel for sums of one size and type, and memory that peers write."""

    def __init__(self, calls: CallRunner, request: Request, session: Any) -> None:
        if calls.hosts:
            raise CallError(
                f"rank {calls.rank}: all_reduce: wire={request.sums.wire!r} on GPUs of "
                "several hosts; want ranks of one host, or arrays on the CPU"
            )
        call, n = request.call, calls.num_ranks
        self._rank = calls.rank
        self._parts = parts = Parts.of(n, call.counts[0], UNIT)
        self._room = max(_FEWEST, 1 << (parts.each - 1).bit_length())
        key = "channels of quantised sums", self._room
        if key not in calls._shared:  # on all ranks alike: they make the same calls
            nbytes = memory_of(n, self._room)
            calls._shared[key] = session.channels(nbytes, blocks=BLOCKS)
        self._channels = calls._shared[key]
        self._name = self._channels.named(
            f"all_reduce of {call.counts[0]} {call.dtype} op={call.op.value} "
            f"wire={request.sums.wire}"
        )
        text = text_of(
            call.dtype,
            str(request.sums.wire),
            n,
            divide=call.op.value == "avg",
            blocks=BLOCKS,
            threads=THREADS,
        )
        self._kernel = self._channels.kernel(
            text, "stretto_quantised_sum", threads=THREADS, options=OPTIONS
        )

    def __call__(self, x: Any, out: Any, stream: Any = None) -> None:
        """Enqueue the sum on a stream."""
        parts = self._parts
        given = SumCall(
            self._channels.pointer, pointer(x), pointer(out), parts.elements,
            parts.each, self._room, self._rank, self._name,
        )  # fmt: skip
        self._kernel(given, stream=stream)
