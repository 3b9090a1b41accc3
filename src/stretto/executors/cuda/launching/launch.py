"""One prepared plan: parameters packed once, then a launch is a look-up and a call.

Nothing that changes between calls is in a kernel's parameters but addresses, so the
packed parameters of a pair of arrays are kept. Epochs live on the device: a captured
launch may be replayed for ever.
"""

from __future__ import annotations

import ctypes
import os
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.errors import DeviceError, PlanError
from stretto.executors.cuda.codegen.abi import Kernel
from stretto.executors.cuda.device.driver import Device, api, ask
from stretto.executors.cuda.launching.captured import capture_of

__all__ = [
    "KEPT",
    "Arguments",
    "Loaded",
    "TooManyBlocks",
    "enqueue",
    "load",
    "mixed",
]

PADDING = 64
"""Bytes after the parameters: an empty table is a word in C."""
KEPT = 512
"""Pairs of arrays whose parameters are kept for each plan."""
LEGACY = 1
"""The greatest handle of the legacy stream, which cannot be captured."""


class TooManyBlocks(PlanError):
    """A kernel has more blocks than the device holds at once."""


class Loaded:
    """A compiled kernel on the device.

    The driver is called by its address, with everything but the parameters laid out
    beforehand: the bindings would spend more time on eleven arguments than it does on
    a launch.
    """

    def __init__(
        self, module: Any, function: Any, kernel: Kernel, *, waits: bool = True
    ) -> None:
        """`waits`: on the device, for the kernel before it; from sm_90 on."""
        self.module = module
        self.function = function
        self.kernel = kernel
        self._launch = _driver_launch()
        self._handle = int(function)
        self.waits = waits
        self._early = waits and begins_early()
        self._configs: dict[int, tuple[int, Any]] = {}
        self._late: dict[int, tuple[int, Any]] = {}
        self._capture = capture_of(api())
        self._capture.ours(self._handle)

    def launch(self, stream: int, arguments: int) -> int:
        """Enqueue the kernel; `arguments` is the address of its argument array.

        Returns the driver's error number.
        """
        if self._early and stream > LEGACY and self._capture.loosen(stream):
            return self.launch_late(stream, arguments)
        found = self._configs.get(stream)
        if found is None:
            found = self._configs[stream] = self._configure(stream, early=self._early)
        return self._launch(found[0], self._handle, arguments, None)

    def launch_late(self, stream: int, arguments: int) -> int:
        """Enqueue the kernel, after what the stream was given before has ended.

        In a graph, what its edge says counts.
        """
        found = self._late.get(stream)
        if found is None:
            found = self._late[stream] = self._configure(stream, early=False)
        return self._launch(found[0], self._handle, arguments, None)

    def _configure(self, stream: int, *, early: bool) -> tuple[int, Any]:
        """Return the address of a launch's configuration, and what keeps it alive."""
        driver, config = api(), _shape(self.kernel)
        config.hStream = driver.CUstream(stream)
        if early:
            asked = driver.CUlaunchAttribute()
            names = driver.CUlaunchAttributeID
            asked.id = names.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            asked.value.programmaticStreamSerializationAllowed = 1
            config.attrs, config.numAttrs = [asked], 1
        return int(config.getPtr()), config


def begins_early() -> bool:
    """Return whether a launch may be placed while the kernel before it ends.

    It then waits on the device (stream.cuh). STRETTO_CUDA_EARLY=0 switches it off.
    """
    return os.environ.get("STRETTO_CUDA_EARLY", "1") != "0"


def _driver_launch() -> Callable[[int, int, int, None], int]:
    """Return `cuLaunchKernelEx`: configuration, function, arguments, nothing."""
    address, _ = ask("cuGetProcAddress", b"cuLaunchKernelEx", 11080, 0)
    pointer = ctypes.c_void_p
    kind = ctypes.CFUNCTYPE(ctypes.c_int, pointer, pointer, pointer, pointer)
    found: Callable[[int, int, int, None], int] = kind(int(address))
    return found


def load(device: Device, kernel: Kernel, image: bytes) -> Loaded:
    """Load a kernel, now and not at its first launch, and check that it fits.

    All of its blocks wait for peers, so all must be resident at once.
    """
    driver = api()
    module = ask("cuModuleLoadData", image)
    function = ask("cuModuleGetFunction", module, kernel.symbol.encode())
    if hasattr(driver, "cuFuncLoad"):
        ask("cuFuncLoad", function)
    resident = _resident(device, function, kernel)
    if resident < kernel.grid:
        raise TooManyBlocks(
            f"{kernel.grid} blocks of {kernel.threads} threads wait for each other, "
            f"and {device.name} holds {resident} at once; choose fewer blocks or "
            "threads"
        )
    return Loaded(module, function, kernel, waits=device.arch >= (9, 0))


def _resident(device: Device, function: Any, kernel: Kernel) -> int:
    """Return how many blocks of a kernel a device holds at once.

    Blocks of a cluster lie on one group of SMs, so that some SMs may be left over: the
    driver is asked for whole clusters then.
    """
    if device.arch >= (9, 0):
        width = api().CUfunction_attribute.CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH
        cluster = int(ask("cuFuncGetAttribute", width, function))
        if cluster > 8:  # more than every GPU that has clusters promises
            allowed = api().CUfunction_attribute
            allowed = allowed.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
            ask("cuFuncSetAttribute", function, allowed, 1)
        if cluster > 1:
            asked = _shape(kernel)
            return cluster * int(ask("cuOccupancyMaxActiveClusters", function, asked))
    per_sm = ask(
        "cuOccupancyMaxActiveBlocksPerMultiprocessor",
        function,
        kernel.threads,
        0,  # bytes of shared memory beside the kernel's own
    )
    return int(per_sm) * device.num_sms


def _shape(kernel: Kernel) -> Any:
    """Return a launch's configuration but for its stream."""
    config = api().CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = kernel.grid, 1, 1
    config.blockDimX, config.blockDimY, config.blockDimZ = kernel.threads, 1, 1
    return config


class Arguments:
    """The packed parameters of one plan in one flag set, by arrays.

    A launch copies its parameters, so those that were packed first are written over
    when there are many: arrays may lie elsewhere in every call.
    """

    def __init__(
        self,
        packed: NDArray[np.uint8],
        bind: Callable[[memoryview, int, int], None],
        extra_at: Sequence[tuple[int, int]] = (),
    ) -> None:
        """`extra_at`: which of 8 bytes take which word of an epilogue's arrays."""
        self._template = packed
        self._bind = bind
        self._extra_at = extra_at
        self.kept: dict[tuple[int, ...], int] = {}
        """By the addresses of input, output, and the words of an epilogue."""
        self._words: dict[int, tuple[memoryview, Any]] = {}
        """What lies at the address of an argument array, and what keeps it there."""

    def pack(self, source: int, target: int, extra: tuple[int, ...] = ()) -> int:
        """Return the address of the argument array for these arrays."""
        if len(self.kept) >= KEPT:
            where = self.kept.pop(next(iter(self.kept)))
        else:
            where = self._make()
        words = self._words[where][0]
        try:
            self._bind(words, source, target)
        except BaseException:
            del self._words[where]
            raise
        for at, nth in self._extra_at:
            words[at] = extra[nth]
        self.kept[source, target, *extra] = where
        return where

    def forget(self) -> None:
        """Pack all anew."""
        self.kept.clear()
        self._words.clear()

    def _make(self) -> int:
        padded = self._template.tobytes() + bytes(PADDING)
        raw = (ctypes.c_uint8 * len(padded)).from_buffer_copy(padded)
        array = (ctypes.c_void_p * 1)(ctypes.addressof(raw))
        where = ctypes.addressof(array)
        self._words[where] = memoryview(raw).cast("B").cast("Q"), array
        return where


def mixed(fingerprint: int, offsets: tuple[int | None, ...]) -> int:
    """Return a fingerprint that also says where zero-copy arrays lie.

    Ranks whose arrays lie at different offsets then differ, and are told so.
    """
    text = repr((fingerprint, offsets)).encode()
    return zlib.crc32(text) or 1


def enqueue(
    device: Device, loaded: Loaded, stream: Any, arguments: int, early: bool = True
) -> None:
    """Launch, entering the context when this thread has not been seen before."""
    launch = loaded.launch if early else loaded.launch_late
    error = launch(int(stream), arguments)
    if error:
        device.enter()
        error = launch(int(stream), arguments)
        if error:
            raise DeviceError(
                f"launch of {loaded.kernel.symbol}: {api().CUresult(error).name}"
            )
