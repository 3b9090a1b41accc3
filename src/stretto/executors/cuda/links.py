"""How the GPUs of a group are joined: what rests on NVLink is refused elsewhere.

A line of 128 bytes arrives whole over NVLink and within one GPU, not over PCIe. The
driver says of two GPUs that a process sees whether atomics of one work in the other's
memory, which NVLink alone offers. Where each rank sees its own GPU only, the management
library is asked, which sees all of them.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
from collections.abc import Sequence
from typing import Any

from stretto.errors import DeviceError
from stretto.executors.cuda.driver import api, ask

__all__ = ["by_nvlink", "why_not_whole"]

OF_NVLINK = 2
"""`NVML_P2P_CAPS_INDEX_NVLINK`."""
CUTS = (0, 8, 12, 16, 20, 32)
"""Where the parts of a UUID that is written out begin, and where it ends."""


def why_not_whole(uuids: Sequence[str]) -> str:
    """Return why 128 bytes may arrive in parts between some of these GPUs, or nothing.

    What nobody can tell counts as PCIe.
    """
    pairs = [(a, b) for a in sorted(set(uuids)) for b in sorted(set(uuids)) if a < b]
    found = {pair: _joined(*pair) for pair in pairs}
    for (a, b), joined in found.items():
        ranks = uuids.index(a), uuids.index(b)
        if joined is None:
            return (
                f"nobody here can tell how the GPUs of ranks {ranks[0]} and {ranks[1]} "
                "are joined (let processes see all GPUs, or libnvidia-ml)"
            )
        if not joined:
            return f"no NVLink joins the GPUs of ranks {ranks[0]} and {ranks[1]}"
    return ""


def _joined(one: str, other: str) -> bool | None:
    """Return whether NVLink joins two GPUs; None: nobody can tell."""
    seen = None
    with contextlib.suppress(DeviceError):
        seen = by_driver(one, other)
    if seen:
        return True
    told = by_management(one, other)
    return seen if told is None else told


def by_driver(one: str, other: str) -> bool | None:
    """Ask the driver; None: this process does not see both GPUs."""
    seen = {}
    for index in range(int(ask("cuDeviceGetCount"))):
        device = ask("cuDeviceGet", index)
        seen[bytes(ask("cuDeviceGetUuid", device).bytes).hex()] = device
    if one not in seen or other not in seen:
        return None
    return by_nvlink(seen[one], seen[other]) and by_nvlink(seen[other], seen[one])


def by_nvlink(one: Any, other: Any) -> bool:
    """Return whether the driver lets one device's atomics work in another's memory."""
    names = api().CUdevice_P2PAttribute
    native = names.CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED
    return bool(ask("cuDeviceGetP2PAttribute", native, one, other))


def by_management(one: str, other: str) -> bool | None:
    """Ask the management library; None: it is not there, or does not know them."""
    library = _management()
    if library is None:
        return None
    handles = []
    for uuid in (one, other):
        handle = ctypes.c_void_p()
        name = "-".join(uuid[a:b] for a, b in itertools.pairwise(CUTS))
        text = f"GPU-{name}".encode()
        if library.nvmlDeviceGetHandleByUUID(text, ctypes.byref(handle)):
            return None
        handles.append(handle)
    status = ctypes.c_int(-1)
    if library.nvmlDeviceGetP2PStatus(*handles, OF_NVLINK, ctypes.byref(status)):
        return None
    return status.value == 0


@functools.cache
def _management() -> ctypes.CDLL | None:
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
        return None if library.nvmlInit_v2() else library
    except (OSError, AttributeError):
        return None
