"""UCX's structures, as this library writes them, beside UCX's own headers."""

import ctypes
import importlib.util
import shutil
import subprocess
from pathlib import Path

import pytest

from stretto.fabric.hop.ucx import structures

C_NAMES = {
    "EndPointAttributes": "ucp_ep_attr_t",
    "HandlerParams": "ucp_am_handler_param_t",
    "Transport": "ucp_transport_entry_t",
    "ComponentAttributes": "uct_component_attr_t",
    "ContextParams": "ucp_params_t",
    "WorkerParams": "ucp_worker_params_t",
    "EndPointParams": "ucp_ep_params_t",
    "MemoryParams": "ucp_mem_map_params_t",
    "RequestParams": "ucp_request_param_t",
}
IN_HEADERS = {
    "EndPointAttributes": (
        320,
        {"field_mask": 0, "name": 8, "local_sockaddr": 40, "remote_sockaddr": 168,
         "transports": 296, "num_entries": 304, "entry_size": 312},
    ),
    "HandlerParams": (32, {"field_mask": 0, "id": 8, "flags": 12, "cb": 16, "arg": 24}),
    "Transport": (16, {"transport_name": 0, "device_name": 8}),
    "ComponentAttributes": (48, {"field_mask": 0, "name": 8}),
    "ContextParams": (88, {"field_mask": 0, "features": 8}),
    "WorkerParams": (200, {"field_mask": 0, "thread_mode": 8}),
    "EndPointParams": (
        104,
        {"field_mask": 0, "address": 8, "err_mode": 16, "err_handler_cb": 24,
         "err_handler_arg": 32},
    ),
    "MemoryParams": (
        48,
        {"field_mask": 0, "address": 8, "length": 16, "flags": 24, "prot": 28,
         "memory_type": 32},
    ),
    "RequestParams": (96, {"op_attr_mask": 0, "flags": 4, "request": 8, "cb": 16,
               "datatype": 24, "user_data": 32, "reply_buffer": 40, "memory_type": 48,
               "recv_info": 56, "memh": 64}),
}  # fmt: skip
"""Of UCX 1.14 to 1.22, on 64 bits: the largest size, and where fields begin."""
NUMBERS = {
    "RMA": "UCP_FEATURE_RMA",
    "WAKEUP": "UCP_FEATURE_WAKEUP",
    "AM": "UCP_FEATURE_AM",
    "EAGER": "UCP_AM_SEND_FLAG_EAGER",
    "COPY_HEADER": "UCP_AM_SEND_FLAG_COPY_HEADER",
    "SERIALIZED": "UCS_THREAD_MODE_SERIALIZED",
    "HOST": "UCS_MEMORY_TYPE_HOST",
    "FORCE": "UCP_EP_CLOSE_FLAG_FORCE",
}
_EP, _MAP = "UCP_EP_PARAM_FIELD_", "UCP_MEM_MAP_PARAM_FIELD_"
_OP = "UCP_OP_ATTR_FIELD_"
_HANDLER = "UCP_AM_HANDLER_PARAM_FIELD_"
MASKS = {
    "EndPointAttributes": (
        ((structures.Transport * 2)(),),
        "UCP_EP_ATTR_FIELD_TRANSPORTS",
    ),
    "HandlerParams": (
        (0, 0, 0),
        f"{_HANDLER}ID | {_HANDLER}FLAGS | {_HANDLER}CB | {_HANDLER}ARG",
    ),
    "ComponentAttributes": ((), "UCT_COMPONENT_ATTR_FIELD_NAME"),
    "ContextParams": ((0,), "UCP_PARAM_FIELD_FEATURES"),
    "WorkerParams": ((0,), "UCP_WORKER_PARAM_FIELD_THREAD_MODE"),
    "EndPointParams": (
        (0, 0, 0, 0),
        f"{_EP}REMOTE_ADDRESS + {_EP}ERR_HANDLING_MODE + {_EP}ERR_HANDLER",
    ),
    "MemoryParams": (
        (0, 0),
        f"{_MAP}ADDRESS | {_MAP}LENGTH | {_MAP}MEMORY_TYPE",
    ),
    "RequestParams": ((1, 1), f"{_OP}FLAGS | {_OP}MEMORY_TYPE | {_OP}MEMH"),
}


def ours(name):
    """Return the size of a structure of ours, and where its fields begin."""
    kind = getattr(structures, name)
    fields = {f: getattr(kind, f).offset for f, _ in kind._fields_ if f != "room"}
    return ctypes.sizeof(kind), fields


def mask(name):
    """Return the mask of a structure of ours."""
    kind = getattr(structures, name)
    return getattr(kind(*MASKS[name][0]), kind._fields_[0][0])


def headers():
    """Return the folder of UCX's headers, or None."""
    spec = importlib.util.find_spec("libucx")
    places = [Path("/usr/include"), Path("/usr/local/include")]
    if spec is not None and spec.submodule_search_locations:
        places.insert(0, Path(next(iter(spec.submodule_search_locations))) / "include")
    return next((p for p in places if (p / "ucp/api/ucp.h").exists()), None)


@pytest.mark.parametrize("name", C_NAMES)
def test_structures_are_those_of_the_headers(name):
    """UCX reads no further than ours go, and finds each field in its place."""
    size, fields = ours(name)

    assert IN_HEADERS[name][0] <= size
    assert IN_HEADERS[name][1] == fields


def test_structures_are_those_of_the_headers_that_are_here(tmp_path):
    """As a C compiler sees them: sizes, places, masks and numbers."""
    compiler, folder = shutil.which("cc") or shutil.which("gcc"), headers()
    if compiler is None or folder is None:
        pytest.skip("no C compiler, or no headers of UCX")
    lines = []
    for name, c_name in C_NAMES.items():
        size, fields = ours(name)
        lines.append(f"sizeof({c_name}) <= {size}")
        for field, at in fields.items():
            there = field.replace("err_handler_", "err_handler.")
            there = there.replace("num_entries", "transports.num_entries")
            there = there.replace("entry_size", "transports.entry_size")
            lines.append(f"offsetof({c_name}, {there}) == {at}")
        if name in MASKS:
            lines.append(f"({MASKS[name][1]}) == {mask(name)}")
    for name, c_name in NUMBERS.items():
        lines.append(f"{c_name} == {getattr(structures, name)}")
    text = [
        "#include <stddef.h>",
        "#include <ucp/api/ucp.h>",
        "#include <uct/api/uct.h>",
    ]
    text += [f'_Static_assert({line}, "{line}");' for line in lines]
    program = tmp_path / "same.c"
    program.write_text("\n".join(text) + "\n")
    done = subprocess.run(
        [compiler, "-std=gnu11", f"-I{folder}", "-fsyntax-only", str(program)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert 0 == done.returncode, done.stderr
