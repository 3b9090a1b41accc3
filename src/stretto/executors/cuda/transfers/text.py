"""The kernel of a transfer: its text, for how long its runs are and how they lie."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from stretto.executors.cuda.codegen.abi import Kernel

THREADS = 256
_VECTORS = {16: "uint4", 8: "uint2", 4: "unsigned", 2: "unsigned short",
            1: "unsigned char"}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class TextKey:
    """What a kernel's text depends on."""

    vector: int
    """Bytes that a thread moves at once; of elements that are converted, 0."""
    lanes: int
    """Threads that move a run together."""
    depth: int
    """Axes within a box."""
    src_dtype: str = ""
    dst_dtype: str = ""
    raises: bool = False
    """Whether a word says when everything has been stored."""
    one: bool = False
    """Whether there is one box of one chunk."""


def shape_of(
    run: int, axes: int, places: Sequence[int], src_dtype: str, dst_dtype: str,
    itemsize: int,
) -> TextKey:  # fmt: skip
    """Return the shape for runs of so many bytes that begin at such places."""
    if src_dtype != dst_dtype:
        lanes = _lanes(run // itemsize)
        return TextKey(vector=0, lanes=lanes, depth=axes, src_dtype=src_dtype,
                     dst_dtype=dst_dtype)  # fmt: skip
    vector = math.gcd(16, run, *places)
    return TextKey(vector=vector, lanes=_lanes(run // vector), depth=axes)


def _lanes(units: int) -> int:
    """Return how many threads share a run: no more than have something to do."""
    return min(32, 1 << max(0, (units - 1).bit_length()))


def kernel_of(shape: TextKey, *, blocks: int) -> Kernel:
    """Return the kernel."""
    one = str(shape.one).lower()
    if shape.vector:
        include = '#include "runs.cuh"'
        ahead = 8 if shape.vector == 16 else 4
        call = (
            f"stretto::move_runs<{_VECTORS[shape.vector]}, {shape.lanes}, "
            f"{shape.depth}, {ahead}, {one}>(runs);"
        )
    else:
        include = '#include "runs.cuh"\n#include "runs_elements.cuh"'
        call = (
            f"stretto::convert_runs<stretto::One_{shape.src_dtype}, "
            f"stretto::One_{shape.dst_dtype}, {shape.lanes}, {shape.depth}, "
            f"{one}>(runs);"
        )
    if shape.raises:
        call = (
            "const unsigned long long turn = stretto::call_of(runs);\n"
            f"  {call}\n  stretto::raise_word(runs, turn);"
        )
    text = (
        f'#include "stream.cuh"\n{include}\n\n'
        f'extern "C" __global__ void __launch_bounds__({THREADS})\n'
        f"stretto_kernel(const stretto::Runs runs) {{\n"
        "  stretto::after_earlier_work();\n  stretto::let_next_begin();\n"
        f"  {call}\n}}\n"
    )
    return Kernel(text=text, ranks=(0,), grid=blocks, threads=THREADS)
