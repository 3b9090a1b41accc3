"""UCX's structures, as far as they are used.

Each begins with a mask that says which fields are given; they grow at their ends. So
each is larger here than in any version, and those of 1.14 are understood by all later
ones. A test holds them to UCX's headers.
"""

from __future__ import annotations

import ctypes

RMA, WAKEUP, AM = 1 << 1, 1 << 4, 1 << 6
"""Features: UCP_FEATURE_RMA, UCP_FEATURE_WAKEUP and UCP_FEATURE_AM."""
SERIALIZED = 1
"""UCS_THREAD_MODE_SERIALIZED: any thread, but one at a time."""
_FLAGS, _KIND, _MEMORY = 1 << 4, 1 << 6, 1 << 8
"""UCP_OP_ATTR_FIELD_FLAGS, UCP_OP_ATTR_FIELD_MEMORY_TYPE and UCP_OP_ATTR_FIELD_MEMH."""
HOST = 0
"""UCS_MEMORY_TYPE_HOST. UCX is told: else it asks CUDA's driver of every address."""
FORCE = 1
"""UCP_EP_CLOSE_FLAG_FORCE."""
EAGER, COPY_HEADER = 1 << 1, 1 << 3
"""UCP_AM_SEND_FLAG_EAGER and UCP_AM_SEND_FLAG_COPY_HEADER."""
_WHOLE = 1
"""UCP_AM_FLAG_WHOLE_MSG."""
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


class ComponentAttributes(ctypes.Structure):
    """`uct_component_attr_t`, which is asked for a name."""

    _fields_ = (
        ("field_mask", ctypes.c_uint64),
        ("name", ctypes.c_char * 16),
        ("room", _ROOM),
    )

    def __init__(self) -> None:
        super().__init__(1)


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


class Transport(ctypes.Structure):
    """`ucp_transport_entry_t`: by what an end point goes, and which device."""

    _fields_ = (
        ("transport_name", ctypes.c_char_p),
        ("device_name", ctypes.c_char_p),
    )


class EndPointAttributes(ctypes.Structure):
    """`ucp_ep_attr_t`, which is asked for transports."""

    _fields_ = (
        ("field_mask", ctypes.c_uint64),
        ("name", ctypes.c_char * 32),
        ("local_sockaddr", ctypes.c_char * 128),
        ("remote_sockaddr", ctypes.c_char * 128),
        ("transports", ctypes.POINTER(Transport)),
        ("num_entries", ctypes.c_uint),
        ("entry_size", ctypes.c_size_t),
        ("room", _ROOM),
    )

    def __init__(self, entries: ctypes.Array[Transport]) -> None:
        super().__init__(8)
        self.transports = ctypes.cast(entries, ctypes.POINTER(Transport))
        self.num_entries, self.entry_size = len(entries), ctypes.sizeof(Transport)


class HandlerParams(ctypes.Structure):
    """`ucp_am_handler_param_t`: who is given whole messages of a number."""

    _fields_ = (
        ("field_mask", ctypes.c_uint64),
        ("id", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("cb", ctypes.c_void_p),
        ("arg", ctypes.c_void_p),
        ("room", _ROOM),
    )

    def __init__(self, number: int, callback: int, arg: int) -> None:
        super().__init__(15, number, _WHOLE, callback, arg)


class MemoryParams(ctypes.Structure):
    """`ucp_mem_map_params_t`, with memory of the host, pinned for GPUs or not."""

    _fields_ = (
        ("field_mask", ctypes.c_uint64),
        ("address", ctypes.c_void_p),
        ("length", ctypes.c_size_t),
        ("flags", ctypes.c_uint32),
        ("prot", ctypes.c_uint32),
        ("memory_type", ctypes.c_uint32),
        ("room", _ROOM),
    )

    def __init__(self, address: int, length: int) -> None:
        super().__init__(1 | 2 | 16, address, length, 0, 0, HOST)


class RequestParams(ctypes.Structure):
    """`ucp_request_param_t`, for memory of the host, mapped or not; with flags."""

    _fields_ = (
        ("op_attr_mask", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("request", ctypes.c_void_p),
        ("cb", ctypes.c_void_p),
        ("datatype", ctypes.c_uint64),
        ("user_data", ctypes.c_void_p),
        ("reply_buffer", ctypes.c_void_p),
        ("memory_type", ctypes.c_uint32),
        ("recv_info", ctypes.c_void_p),
        ("memh", ctypes.c_void_p),
        ("room", _ROOM),
    )

    def __init__(self, flags: int = 0, memory: int = 0) -> None:
        given = _KIND | (_FLAGS if flags else 0) | (_MEMORY if memory else 0)
        super().__init__(given, flags, memory_type=HOST, memh=memory)
