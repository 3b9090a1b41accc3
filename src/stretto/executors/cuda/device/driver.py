"""The CUDA driver: calls that answer or raise, and the device of this rank."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.errors import CallError, DeviceError, MissingExtraError
from stretto.executors.cuda.device.ranges import LeftRanges

NO_MULTICAST = {
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "NVSHMEM_DISABLE_NVLS": "1",
}
"""NVLink multicast stays off in every process that shares a GPU with us."""


@functools.cache
def api() -> Any:
    """Return the driver's bindings, initialised."""
    try:
        from cuda.bindings import driver
    except ModuleNotFoundError as e:
        raise MissingExtraError(
            "the cuda executor needs cuda-bindings: pip install 'stretto[cuda13]'"
        ) from e
    try:
        (error,) = driver.cuInit(0)
    except RuntimeError as e:
        raise DeviceError(f"no CUDA driver on this machine ({e})") from e
    if int(error):
        raise DeviceError(f"cuInit: {error.name}; see stretto doctor")
    return driver


def ask(name: str, *args: Any) -> Any:
    """Call a driver function; return its value, or raise `DeviceError`."""
    error, *values = getattr(api(), name)(*args)
    if int(error):
        shown = ", ".join(repr(a) if isinstance(a, int) else "..." for a in args)
        raise DeviceError(f"{name}({shown}): {_explain(error)}")
    if not values:
        return None
    return values[0] if len(values) == 1 else tuple(values)


def attempt(name: str, *args: Any) -> None:
    """Call a driver function that frees something, whether it can or not.

    What else is to be freed must not stay because of it.
    """
    with contextlib.suppress(DeviceError):
        ask(name, *args)


def _explain(error: Any) -> str:
    try:
        _, text = api().cuGetErrorString(error)
        return f"{error.name}, {text.decode()}"
    except (AttributeError, TypeError):
        return str(error)


def require_no_multicast() -> None:
    """Raise unless this process keeps NVLink multicast switched off.

    Libraries that we share a process with read these when they start.
    """
    wrong = {k: v for k, v in NO_MULTICAST.items() if os.environ.get(k, v) != v}
    if wrong:
        want = " ".join(f"{k}={v}" for k, v in wrong.items())
        raise DeviceError(f"multicast must stay off here; set {want}")
    os.environ.update(NO_MULTICAST)


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """The GPU of a rank, its primary context current: one object in a process."""

    handle: Any
    ordinal: int
    context: Any
    uuid: str
    name: str
    arch: tuple[int, int]
    num_sms: int
    left: LeftRanges = field(default_factory=LeftRanges, repr=False, compare=False)
    """Addresses of sessions that have ended."""

    def enter(self) -> None:
        """Make the context current on this thread."""
        ask("cuCtxSetCurrent", self.context)

    def require_context(self) -> None:
        """Make the context current on a thread that has none."""
        if not int(ask("cuCtxGetCurrent")):
            self.enter()


_opened: list[int] = []
"""The devices that this process has opened: a rank stays on its GPU."""
_devices: dict[str, Device] = {}
"""Those that it has opened itself, by their UUID."""


def here() -> int:
    """Return the device that is current on this thread; others of ours then use it."""
    if int(ask("cuCtxGetCurrent")):
        _opened.append(int(ask("cuCtxGetDevice")))
    return _opened[-1] if _opened else 0


def open_device(local_rank: int) -> Device:
    """Return this process's device.

    That is the one whose context is current, for those who chose it (as torch does);
    else the one opened before, in another thread or for another group; else the only
    visible one, or the one numbered like the rank on this host.
    """
    require_no_multicast()
    handle = _chosen(local_rank)
    _opened.append(int(handle))
    primary = ask("cuDevicePrimaryCtxRetain", handle)
    ask("cuCtxSetCurrent", primary)
    uuid = _uuid(handle)
    known = _devices.get(uuid)
    return known or _devices.setdefault(uuid, _described(handle, primary, uuid))


def chosen_uuid(local_rank: int | None) -> str:
    """Return the UUID of the device that `open_device` would take; nothing is done.

    "": that depends on the rank, and nobody says which this is.
    """
    if int(ask("cuCtxGetCurrent")) or _opened or local_rank is not None:
        return _uuid(_chosen(local_rank or 0))
    return _uuid(_chosen(0)) if ask("cuDeviceGetCount") == 1 else ""


def _chosen(local_rank: int) -> Any:
    """Return the handle of the device that this process is to use."""
    if int(ask("cuCtxGetCurrent")):
        return ask("cuCtxGetDevice")
    count = ask("cuDeviceGetCount")
    if not count:
        raise DeviceError("no CUDA device is visible; see stretto doctor")
    return ask("cuDeviceGet", _opened[-1] if _opened else local_rank % count)


def _uuid(handle: Any) -> str:
    return bytes(ask("cuDeviceGetUuid", handle).bytes).hex()


def _described(handle: Any, context: Any, uuid: str) -> Device:
    return Device(
        handle=handle,
        ordinal=int(handle),
        context=context,
        uuid=uuid,
        name=ask("cuDeviceGetName", 128, handle).split(b"\0")[0].decode(),
        arch=_arch(handle),
        num_sms=_attribute(handle, "MULTIPROCESSOR_COUNT"),
    )


def arch_of(index: int) -> tuple[int, int]:
    """Return the architecture of a visible GPU, on which nothing is made."""
    return _arch(ask("cuDeviceGet", index))


def _arch(handle: Any) -> tuple[int, int]:
    return (
        _attribute(handle, "COMPUTE_CAPABILITY_MAJOR"),
        _attribute(handle, "COMPUTE_CAPABILITY_MINOR"),
    )


def _attribute(handle: Any, name: str) -> int:
    names = api().CUdevice_attribute
    key = getattr(names, f"CU_DEVICE_ATTRIBUTE_{name}")
    return int(ask("cuDeviceGetAttribute", key, handle))


_torch: list[Callable[[int], int]] = []
"""How to ask torch for its stream, once torch is there."""


def stream_handle(stream: Any) -> int:
    """Return the handle of a stream: an int, torch's, or any `__cuda_stream__`."""
    if isinstance(stream, int):
        return stream
    if hasattr(stream, "cuda_stream"):
        return int(stream.cuda_stream)
    if hasattr(stream, "__cuda_stream__"):
        return int(stream.__cuda_stream__()[1])
    raise CallError(f"stream={stream!r}; want an int or a CUDA stream object")


def current_stream(ordinal: int) -> int:
    """Return the stream that the caller works on: torch's when torch is in use.

    Torch is looked up, never imported: whoever has no torch stream has no torch.
    """
    if _torch:
        found: int = _torch[0](ordinal)
        return found
    torch = sys.modules.get("torch")
    ask_torch = getattr(getattr(torch, "_C", None), "_cuda_getCurrentRawStream", None)
    if ask_torch is None:
        return 0
    _torch.append(ask_torch)
    return int(ask_torch(ordinal))


def stream_question() -> Callable[[int], int]:
    """Return what says, of a GPU's number, what `current_stream` does, and sooner."""
    return _torch[0] if _torch else current_stream


def capturing(stream: int) -> bool | None:
    """Return whether a graph is being captured on that stream; None: it is gone.

    The legacy stream cannot be asked while another captures: then one does.
    """
    driver = api()
    error, *status = driver.cuStreamIsCapturing(driver.CUstream(stream))
    if error == driver.CUresult.CUDA_ERROR_STREAM_CAPTURE_IMPLICIT:
        return True
    if int(error):
        return None
    return bool(
        status[0] == driver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_ACTIVE
    )


def capture_number(stream: int) -> int:
    """Return which capture a stream takes part in; others give other numbers."""
    driver = api()
    error, _, number, *_ = driver.cuStreamGetCaptureInfo(driver.CUstream(stream))
    if int(error):
        raise DeviceError(f"cuStreamGetCaptureInfo({stream}): {_explain(error)}")
    return int(number)


def stream_number(stream: int) -> int | None:
    """Return what tells a stream from later ones with its handle; None: it is gone.

    Drivers older than 12.0 do not number streams: 0.
    """
    driver = api()
    if not hasattr(driver, "cuStreamGetId"):
        return 0
    error, number = driver.cuStreamGetId(driver.CUstream(stream))
    return None if int(error) else int(number)


class Pinned:
    """Host memory that the GPU writes to, as 64-bit words."""

    def __init__(self, words: int) -> None:
        flags = api().CU_MEMHOSTALLOC_PORTABLE | api().CU_MEMHOSTALLOC_DEVICEMAP
        self._host = int(ask("cuMemHostAlloc", words * 8, flags))
        self.device_pointer = int(ask("cuMemHostGetDevicePointer", self._host, 0))
        raw = (ctypes.c_uint64 * words).from_address(self._host)
        self.words: NDArray[np.uint64] = np.ctypeslib.as_array(raw)
        self.words[:] = 0

    def close(self) -> None:
        """Free the memory."""
        if self._host:
            self.words = np.zeros(0, np.uint64)
            ask("cuMemFreeHost", self._host)
            self._host = 0


def untimed_event() -> Any:
    """Return an event that orders streams."""
    return ask("cuEventCreate", int(api().CUevent_flags.CU_EVENT_DISABLE_TIMING))


class JoinedStream:
    """A stream of our own beside the caller's, with events to fork and join."""

    def __init__(self) -> None:
        driver = api()
        nonblocking = int(driver.CUstream_flags.CU_STREAM_NON_BLOCKING)
        self.stream = ask("cuStreamCreate", nonblocking)
        self.begin, self.end = untimed_event(), untimed_event()

    def close(self) -> None:
        """Destroy the stream and its events."""
        ask("cuStreamDestroy", self.stream)
        ask("cuEventDestroy", self.begin)
        ask("cuEventDestroy", self.end)
