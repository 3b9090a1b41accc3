"""UCX's structures, as far as they are used.

Each begins with a mask that says which fields are given; they grow at their ends. So
each is larger here than in any version, and those of 1.14 are understood by all later
ones. A test holds them to UCX's headers.
"""

from __future__ import annotations

import ctypes

__all__ = [
    "FORCE",
    "RMA",
    "SERIALIZED",
    "WAKEUP",
    "ContextParams",
    "EndPointParams",
    "MemoryParams",
    "RequestParams",
    "WorkerParams",
]

RMA, WAKEUP = 1 << 1, 1 << 4
"""Features: UCP_FEATURE_RMA and UCP_FEATURE_WAKEUP."""
SERIALIZED = 1
"""UCS_THREAD_MODE_SERIALIZED: any thread, but one at a time."""
_FLAGS = 1 << 4
"""UCP_OP_ATTR_FIELD_FLAGS."""
FORCE = 1
"""UCP_EP_CLOSE_FLAG_FORCE."""
_ROOM = ctypes.c_uint64 * 32


class ContextParams(ctypes.Structure):
    """`ucp_params_t`, with features."""

    _fields_ = (
        ("field_mask", ctypes.c_uint64),
        ("features", ctypes.c_uint64),
        ("room", _ROOM),
    )

    def __init__(self, features: int) -> None:
        super().__init__(1, features)


class WorkerParams(ctypes.Structure):
    """`ucp_worker_params_t`, with a thread mode."""

    _fields_ = (
        ("field_mask", ctypes.c_uint64),
        ("thread_mode", ctypes.c_uint32),
        ("room", _ROOM),
    )

    def __init__(self, thread_mode: int) -> None:
        super().__init__(1, thread_mode)


class EndPointParams(ctypes.Structure):
    """`ucp_ep_params_t`, with a worker's address and whom to tell of errors."""

    _fields_ = (
        ("field_mask", ctypes.c_uint64),
        ("address", ctypes.c_void_p),
        ("err_mode", ctypes.c_uint32),
        ("err_handler_cb", ctypes.c_void_p),
        ("err_handler_arg", ctypes.c_void_p),
        ("room", _ROOM),
    )

    def __init__(self, address: int, err_mode: int, callback: int, arg: int) -> None:
        super().__init__(7, address, err_mode, callback, arg)


class MemoryParams(ctypes.Structure):
    """`ucp_mem_map_params_t`, with memory."""

    _fields_ = (
        ("field_mask", ctypes.c_uint64),
        ("address", ctypes.c_void_p),
        ("length", ctypes.c_size_t),
        ("room", _ROOM),
    )

    def __init__(self, address: int, length: int) -> None:
        super().__init__(3, address, length)


class RequestParams(ctypes.Structure):
    """`ucp_request_param_t`, with flags or nothing."""

    _fields_ = (
        ("op_attr_mask", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("room", _ROOM),
    )

    def __init__(self, flags: int = 0) -> None:
        super().__init__(_FLAGS if flags else 0, flags)
