"""What this machine's GPUs can do, and what is missing, tried out and not looked up."""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.errors import DeviceError, StrettoError
from stretto.executors.cuda.device.driver import NO_MULTICAST, api, ask

CHECKED_BYTES = 1 << 20


def examine() -> Mapping[str, str]:
    """Return findings by subject; a subject that is broken says how."""
    found = {"nvrtc": _nvrtc(), "multicast": _multicast()}
    try:
        found["driver"] = _version(int(ask("cuDriverGetVersion")))
        count = int(ask("cuDeviceGetCount"))
    except StrettoError as e:
        return {**found, "driver": str(e)}
    found["gpus"] = f"{count} visible"
    with _kept_context():
        for index in range(count):
            found[f"gpu {index}"] = _gpu(index)
        for one in range(count):
            for other in range(count):
                if one != other:
                    found[f"gpu {one} to {other}"] = _transfer(one, other)
    return found


def names() -> list[str]:
    """Return the names of the GPUs that are visible; none without a driver."""
    try:
        many = int(ask("cuDeviceGetCount"))
    except StrettoError:
        return []
    return [_gpu(index).partition(",")[0] for index in range(many)]


@contextlib.contextmanager
def _kept_context() -> Iterator[None]:
    before = ask("cuCtxGetCurrent")
    try:
        yield
    finally:
        ask("cuCtxSetCurrent", before)


def _nvrtc() -> str:
    if importlib.util.find_spec("cuda") is None:
        return "missing: pip install 'stretto[cuda13]'"
    try:
        from cuda.bindings import nvrtc

        _, major, minor = nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError) as e:
        return f"missing: {e}"
    return f"{major}.{minor}"


def _multicast() -> str:
    on = [k for k, v in NO_MULTICAST.items() if os.environ.get(k, v) != v]
    return f"on by {', '.join(on)}; it must be off" if on else "off, as it must be"


def _version(number: int) -> str:
    return f"CUDA {number // 1000}.{number % 1000 // 10}"


def _gpu(index: int) -> str:
    try:
        handle = ask("cuDeviceGet", index)
        name = ask("cuDeviceGetName", 128, handle).split(b"\0")[0].decode()
        name += f", UUID {bytes(ask('cuDeviceGetUuid', handle).bytes).hex()}"
        lacks = [
            what
            for what, attribute in (
                ("virtual memory", "VIRTUAL_MEMORY_MANAGEMENT"),
                ("file descriptors", "HANDLE_TYPE_POSIX_FILE_DESCRIPTOR"),
            )
            if not _supports(handle, attribute)
        ]
    except StrettoError as e:
        return str(e)
    return f"{name}; lacks {', '.join(lacks)} (legacy IPC will do)" if lacks else name


def _supports(handle: Any, what: str) -> bool:
    name = f"CU_DEVICE_ATTRIBUTE_{what}_SUPPORTED"
    return bool(
        ask("cuDeviceGetAttribute", getattr(api().CUdevice_attribute, name), handle)
    )


def _transfer(one: int, other: int) -> str:
    """Move patterns between two GPUs and look at them: some links only claim to work.

    The first writes to the other's memory, then reads from it. Peer access must really
    be on: without it the driver would copy by way of the host, and all would look well.
    """
    allocated: list[int] = []
    try:
        devices = [ask("cuDeviceGet", i) for i in (one, other)]
        if not int(ask("cuDeviceCanAccessPeer", *devices)):
            return "no peer access"
        near, far = (ask("cuDevicePrimaryCtxRetain", d) for d in devices)
        for context in (far, near):
            ask("cuCtxSetCurrent", context)
            allocated.append(int(ask("cuMemAlloc", CHECKED_BYTES)))
        _enable(far)
        theirs, mine = allocated
        wrong = (
            _pushed(2 * one, theirs, mine, near, far),
            _pulled(2 * one + 1, theirs, mine, near, far),
        )
        told = [
            f"{count} of {CHECKED_BYTES} bytes that it {verb} are wrong"
            for verb, count in zip(("writes", "reads"), wrong, strict=True)
            if count
        ]
        if told:
            return f"broken: {', '.join(told)}"
        how = "NVLink" if _by_nvlink(*devices) else "no NVLink"
        return f"ok, transfers were checked ({how})"
    except StrettoError as e:
        return f"broken: {e}"
    finally:
        for start in allocated:
            with contextlib.suppress(StrettoError):
                ask("cuMemFree", start)


def _by_nvlink(one: Any, other: Any) -> bool:
    """Return whether atomics of one work in the other's memory: over NVLink alone."""
    names = api().CUdevice_P2PAttribute
    native = names.CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED
    return bool(ask("cuDeviceGetP2PAttribute", native, one, other))


def _enable(far: Any) -> None:
    """Give the current context access to another's memory, if it has none yet."""
    driver = api()
    (error,) = driver.cuCtxEnablePeerAccess(far, 0)
    on = driver.CUresult.CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED
    if int(error) and error != on:
        raise DeviceError(f"cuCtxEnablePeerAccess: {error.name}")


def _pushed(seed: int, theirs: int, mine: int, near: Any, far: Any) -> int:
    """Write a pattern to the far GPU; return how many bytes it finds wrong."""
    ask("cuCtxSetCurrent", far)
    ask("cuMemsetD8", theirs, 0xEE, CHECKED_BYTES)
    ask("cuCtxSynchronize")
    ask("cuCtxSetCurrent", near)
    pattern = _pattern(seed)
    ask("cuMemcpyHtoD", mine, pattern.ctypes.data, CHECKED_BYTES)
    ask("cuMemcpyDtoD", theirs, mine, CHECKED_BYTES)
    ask("cuCtxSynchronize")
    ask("cuCtxSetCurrent", far)
    return _wrong(theirs, pattern)


def _pulled(seed: int, theirs: int, mine: int, near: Any, far: Any) -> int:
    """Read a pattern from the far GPU; return how many bytes arrive wrong."""
    ask("cuCtxSetCurrent", far)
    pattern = _pattern(seed)
    ask("cuMemcpyHtoD", theirs, pattern.ctypes.data, CHECKED_BYTES)
    ask("cuCtxSynchronize")
    ask("cuCtxSetCurrent", near)
    ask("cuMemsetD8", mine, 0xEE, CHECKED_BYTES)
    ask("cuMemcpyDtoD", mine, theirs, CHECKED_BYTES)
    ask("cuCtxSynchronize")
    return _wrong(mine, pattern)


def _pattern(seed: int) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, CHECKED_BYTES, np.uint8)


def _wrong(start: int, pattern: NDArray[np.uint8]) -> int:
    seen = np.zeros(CHECKED_BYTES, np.uint8)
    ask("cuMemcpyDtoH", seen.ctypes.data, start, CHECKED_BYTES)
    return int((seen != pattern).sum())
