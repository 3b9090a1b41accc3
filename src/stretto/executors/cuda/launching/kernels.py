"""Kernels on this process's GPU: loaded once, whichever of its sessions use them.

Loading may wait for all that runs on the GPU, and what runs there may wait for a peer.
So a session that finds a kernel here has nothing to wait for: of two ranks that both
send before they receive, each finds the receiving kernel when its own send is under way
(a transfer loads both).
"""

from __future__ import annotations

import ctypes
import functools
import os
import threading
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from stretto.errors import DeviceError, PlanError
from stretto.executors.cuda.codegen.abi import Kernel
from stretto.executors.cuda.device.driver import Device, api, ask
from stretto.executors.cuda.flags.steps import CLOCK_KERNEL, memory_of
from stretto.executors.cuda.launching.captured import capture_of
from stretto.fabric.jit import missing
from stretto.fabric.jit.loading import load as load_compiled

LEGACY = 1
"""The greatest handle of the legacy stream, which cannot be captured."""
_shelves: weakref.WeakKeyDictionary[Any, dict[tuple[int, str], Loaded]] = (
    weakref.WeakKeyDictionary()
)
"""Kernels by GPU and text; a shelf for each driver.

They stay: a graph that was captured launches their code for as long as it is there, and
a replay without it is no error of CUDA's but the end of the process.
"""
TURN = threading.RLock()
"""Whoever loads has it: the others then find what was loaded.

Held while several are loaded that must all be there before one runs.
"""


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

    def directly(
        self, stream: int, late: int | None = None
    ) -> Callable[[int, None], int] | None:
        """Return the driver's own launch on a stream that no graph can be made of.

        It takes the address of the argument array, and None; nothing is asked then.
        `late`: the stream on which whoever asks launches late, and in no capture.
        """
        found = (self._configs if late is None else self._late).get(stream)
        if found is None or (stream > LEGACY and late is None):
            return None
        return functools.partial(self._launch, found[0], self._handle)

    def launch_late(self, stream: int, arguments: int) -> int:
        """Enqueue the kernel, after what the stream was given before has ended.

        In a graph, what its edge says counts.
        """
        found = self._late.get(stream)
        if found is None:
            found = self._late[stream] = self._configure(stream, early=False)
        return self._launch(found[0], self._handle, arguments, None)

    def behind(self, stream: int) -> Callable[[int, int, int], int] | None:
        """Return what launches late on a stream, behind another; see `behind`.

        None: it has not been launched there so far, or nothing can be compiled here.
        """
        found = self._late.get(stream)
        if found is None or missing():
            return None
        name = "stretto.executors.cuda.launching.behind"
        (module,) = load_compiled("a started call", name)
        made: Callable[[int, int, int], int] = module.behind(
            stream, found[0], self._handle
        )
        return made

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


class Kernels:
    """The kernels of one session."""

    def __init__(
        self, device: Device, quiet: Callable[[], AbstractContextManager[None]]
    ) -> None:
        """`quiet` holds while nothing runs that loading might wait for."""
        self._device = device
        self._quiet = quiet
        self._mine: dict[str, Loaded] = {}

    def load(self, kernel: Kernel) -> Loaded:
        """Return a kernel, compiled and loaded."""
        found = self._mine.get(kernel.digest)
        if found is None:
            found = self._mine[kernel.digest] = self._take(kernel)
        if found.kernel != kernel:
            same = found.module, found.function
            found = Loaded(*same, kernel, waits=found.waits)
        return found

    def _take(self, kernel: Kernel) -> Loaded:
        from stretto.executors.cuda.codegen.compile import (
            compile_kernel,  # it needs NVRTC
        )

        key = self._device.ordinal, kernel.digest
        with TURN:
            shelf = _shelves.setdefault(api(), {})
            if key not in shelf:
                image = compile_kernel(kernel, arch=self._device.arch)
                clock = b""
                if kernel.steps:
                    clock = compile_kernel(CLOCK_KERNEL, arch=self._device.arch)
                with self._quiet():
                    shelf[key] = load(self._device, kernel, image)
                    if kernel.steps:
                        memory = memory_of(self._device)
                        memory.attach(shelf[key].module)
                        memory.load_clock(clock)
            return shelf[key]
