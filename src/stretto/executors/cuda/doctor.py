"""What this machine's GPUs can do, and what is missing, tried out and not looked up."""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import Iterator, Mapping
from typing import Any

from stretto.errors import StrettoError
from stretto.executors.cuda.driver import NO_MULTICAST, api, ask

__all__ = ["examine"]

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
    """Copy a pattern from GPU to GPU and look at it: some links only claim to work."""
    allocated: list[int] = []
    try:
        mine, theirs = (ask("cuDeviceGet", i) for i in (one, other))
        if not int(ask("cuDeviceCanAccessPeer", mine, theirs)):
            return "no peer access"
        contexts = [ask("cuDevicePrimaryCtxRetain", d) for d in (mine, theirs)]
        for context, value in zip(contexts, (0x5A, 0xA5), strict=True):
            ask("cuCtxSetCurrent", context)
            allocated.append(int(ask("cuMemAlloc", CHECKED_BYTES)))
            ask("cuMemsetD8", allocated[-1], value, CHECKED_BYTES)
            ask("cuCtxSynchronize")
        ask("cuCtxSetCurrent", contexts[0])
        with contextlib.suppress(StrettoError):  # enabled by somebody else already
            ask("cuCtxEnablePeerAccess", contexts[1], 0)
        ask("cuMemcpyDtoD", allocated[1], allocated[0], CHECKED_BYTES)
        ask("cuCtxSynchronize")
        ask("cuCtxSetCurrent", contexts[1])
        return _looked_at(allocated[1])
    except StrettoError as e:
        return f"broken: {e}"
    finally:
        for start in allocated:
            with contextlib.suppress(StrettoError):
                ask("cuMemFree", start)


def _looked_at(start: int) -> str:
    import numpy as np

    seen: Any = np.zeros(CHECKED_BYTES, np.uint8)
    ask("cuMemcpyDtoH", seen.ctypes.data, start, CHECKED_BYTES)
    wrong = int((seen != 0x5A).sum())
    if wrong:
        return f"broken: {wrong} of {CHECKED_BYTES} bytes arrive wrong"
    return "ok, a transfer was checked"
