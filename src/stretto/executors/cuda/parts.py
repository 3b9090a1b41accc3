"""Sums of parts that lie one after the other in a GPU's memory: one pass, one rounding.

Generic reductions over a short, slow axis reach half of the memory's rate (80 us for
four parts of 32 MB, H200); a matmul that is to end in a sum waits for it.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from stretto.executors.cuda.codegen.abi import Kernel
from stretto.executors.cuda.codegen.compile import compile_kernel
from stretto.executors.cuda.codegen.elements import ELEMENTS
from stretto.executors.cuda.device.driver import ask, open_device
from stretto.executors.cuda.launching.kernels import Loaded, enqueue
from stretto.executors.cuda.words import STACKED

TYPES = ("bfloat16", "float16", "float32", "float64")
THREADS = 256
_BLOCKS_PER_SM = 8
_MOST_PARTS = 8


def kernel_of(dtype: str, parts: int, blocks: int) -> Kernel:
    """Return the kernel for so many parts of a type."""
    text = (
        '#include "parts.cuh"\n\n'
        f'extern "C" __global__ void __launch_bounds__({THREADS})\n'
        "stretto_kernel(const stretto::Stacked parts) {\n"
        "  stretto::after_earlier_work();\n  stretto::let_next_begin();\n"
        f"  stretto::add_parts<stretto::{ELEMENTS[dtype]}, {parts}>(parts);\n}}\n"
    )
    return Kernel(text=text, ranks=(0,), grid=blocks, threads=THREADS)


class Adder:
    """The kernels of a GPU, each compiled when it is first needed."""

    def __init__(self, device: int) -> None:
        self._device = open_device(device)
        self._loaded: dict[tuple[str, int], Loaded] = {}

    def takes(self, dtype: str, parts: int, nbytes: int, *addresses: int) -> bool:
        """Return whether such parts are added here: whole vectors, evenly placed."""
        even = all(at % 16 == 0 for at in (nbytes, *addresses))
        return even and nbytes > 0 and dtype in TYPES and 1 < parts <= _MOST_PARTS

    def add(
        self, dtype: str, parts: int, nbytes: int, first: int, out: int, stream: int
    ) -> None:
        """Enqueue the sum of parts of so many bytes, the first at an address."""
        found = self._loaded.get((dtype, parts))
        if found is None:
            found = self._loaded[dtype, parts] = self._load(dtype, parts)
        parts_ = np.array([(first, out, nbytes, nbytes // 16)], STACKED)
        argument = (ctypes.c_void_p * 1)(parts_.ctypes.data)
        enqueue(self._device, found, stream, ctypes.addressof(argument))

    def _load(self, dtype: str, parts: int) -> Loaded:
        self._device.enter()
        blocks = self._device.num_sms * _BLOCKS_PER_SM
        kernel = kernel_of(dtype, parts, blocks)
        image = compile_kernel(kernel, arch=self._device.arch)
        module: Any = ask("cuModuleLoadData", image)
        function = ask("cuModuleGetFunction", module, kernel.symbol.encode())
        return Loaded(module, function, kernel, waits=self._device.arch >= (9, 0))
