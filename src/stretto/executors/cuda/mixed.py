"""Sums of tensors on a GPU as the host adds them up, copies on the way, and FP8.

In: addresses. Out: kernels on a stream, each compiled when it is first needed. Never: a
tensor of a library.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from stretto.errors import CallError
from stretto.executors.cuda.codegen.abi import Kernel
from stretto.executors.cuda.codegen.compile import compile_kernel
from stretto.executors.cuda.codegen.elements import ELEMENTS
from stretto.executors.cuda.device.driver import Device, api, ask, attempt, open_device
from stretto.executors.cuda.launching.kernels import Loaded, enqueue
from stretto.executors.cuda.words import MIXED, QUANTISED

THREADS = 256
PIECE = 512 << 10
"""Bytes that a block adds up before it takes others."""
_BLOCKS_PER_SM = 8
_ROW_BYTES = 32
"""What the words of a piece take."""
Place = tuple[int, int, int, int, int]
"""A run of a tensor: its number, source, copy or 0, bytes, and an element's."""
WIDE = ("float32", "float16", "bfloat16")
"""Types that become FP8 here."""


def mixing(blocks: int) -> Kernel:
    """Return the kernel that adds up and copies."""
    return _kernel("const stretto::Mixed m", "mix_pieces(m)", blocks)


def quantising(
    src: str, dst: str, most: float, blocks: int, threads: int = THREADS
) -> Kernel:
    """Return the kernel that makes one type another, whose largest value is `most`."""
    types = f"stretto::{ELEMENTS[src]}, stretto::{ELEMENTS[dst]}, {threads}"
    return _kernel(
        "const stretto::Quantised q", f"quantise<{types}>(q, {most}f)", blocks
    )


def _kernel(given: str, call: str, blocks: int) -> Kernel:
    text = (
        '#include "mixed.cuh"\n\n'
        f'extern "C" __global__ void __launch_bounds__({THREADS})\n'
        f"stretto_kernel({given}) {{\n"
        "  stretto::after_earlier_work();\n  stretto::let_next_begin();\n"
        f"  stretto::{call};\n}}\n"
    )
    return Kernel(text=text, ranks=(0,), grid=blocks, threads=THREADS)


class Mixer:
    """The kernels of a GPU."""

    def __init__(self, device: int) -> None:
        self.device = open_device(device)
        self._loaded: dict[str, Loaded] = {}

    @property
    def blocks(self) -> int:
        """Return how many blocks fill the GPU."""
        return self.device.num_sms * _BLOCKS_PER_SM

    def launch(self, kernel: Kernel, words: Any, stream: int) -> None:
        """Enqueue a kernel of one argument."""
        self.device.enter()
        found = self._loaded.get(kernel.digest)
        if found is None:
            image = compile_kernel(kernel, arch=self.device.arch)
            module = ask("cuModuleLoadData", image)
            function = ask("cuModuleGetFunction", module, kernel.symbol.encode())
            waits = self.device.arch >= (9, 0)
            found = Loaded(module, function, kernel, waits=waits)
            self._loaded[kernel.digest] = found
        argument = (ctypes.c_void_p * 1)(words.ctypes.data)
        enqueue(self.device, found, stream, ctypes.addressof(argument))

    def sums(self, places: Sequence[Place]) -> Sums:
        """Return what adds up tensors, each of one place or more."""
        return Sums(self, self.device, places)

    def quantise(
        self, src: int, dst: int, scales: int, *, shape: tuple[int, int, int],
        block: tuple[int, int], types: tuple[str, str], most: float, stream: int,
    ) -> None:  # fmt: skip
        """Enqueue the making of FP8 of matrices, one behind the other."""
        if types[0] not in WIDE or shape[2] % 4 or block[1] % 4 or (src | dst) % 16:
            raise CallError(f"{types}, {shape}, {block}: want whole fours of {WIDE}")
        words = np.array([(src, dst, scales, *shape, *block, 0)], QUANTISED)
        self.launch(quantising(*types, most, self.blocks), words, stream)


def pieces(places: Sequence[Place]) -> Any:
    """Return the words of all pieces of tensors."""
    rows = [
        (
            src + at,
            dst and dst + at,
            min(PIECE, nbytes - at),
            number << 8 | min(size, 4),
        )
        for number, src, dst, nbytes, size in places
        for at in range(0, nbytes, PIECE)
    ]
    return np.array(rows, np.uint64).reshape(-1, 4)


class Sums:
    """Tensors that are added up again and again, where they lie, some at a time.

    `places` come in the order of tensors' numbers.
    """

    def __init__(self, mixer: Mixer, device: Device, places: Sequence[Place]) -> None:
        self._mixer, self._device = mixer, device
        self._count = 1 + max((place[0] for place in places), default=-1)
        words = pieces(places)
        numbers = np.arange(self._count + 1, dtype=np.uint64)
        self._rows = np.searchsorted(words[:, 3] >> np.uint64(8), numbers).tolist()
        """Where each tensor's pieces begin."""
        device.enter()
        self._table = int(ask("cuMemAlloc", max(words.nbytes, 32)))
        ask("cuMemcpyHtoD", self._table, words.ctypes.data, words.nbytes)
        self._sums = int(ask("cuMemAlloc", 4 * self._count + 4))
        self._stream = 0

    def begin(self, stream: int) -> None:
        """Begin anew, behind what a stream was given."""
        self._device.enter()
        self._stream, handle = stream, api().CUstream(stream)
        ask("cuMemsetD32Async", self._sums, 0, self._count, handle)

    def add(self, first: int, last: int) -> None:
        """Add up the tensors of some numbers, on that stream."""
        begin, end = self._rows[first], self._rows[last]
        at = self._table + begin * _ROW_BYTES
        words = np.array([(at, self._sums, end - begin, 0)], MIXED)
        self._mixer.launch(mixing(self._mixer.blocks), words, self._stream)

    def wait(self) -> None:
        """Wait until what was added has been read, and copied."""
        self._device.enter()
        ask("cuStreamSynchronize", api().CUstream(self._stream))

    def found(self) -> tuple[int, ...]:
        """Return the sums of all."""
        self._device.enter()
        handle, found = api().CUstream(self._stream), np.zeros(self._count, np.uint32)
        ask("cuMemcpyDtoHAsync", found.ctypes.data, self._sums, found.nbytes, handle)
        ask("cuStreamSynchronize", handle)
        return tuple(map(int, found))

    def close(self) -> None:
        """Give its memory back."""
        self._device.enter()
        attempt("cuMemFree", self._table)
        attempt("cuMemFree", self._sums)
