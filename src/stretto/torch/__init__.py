"""stretto in PyTorch: a backend of torch.distributed, operators and fused layers.

torch.distributed.init_process_group("stretto")

Where stretto is installed `import torch` imports this; elsewhere `import stretto.torch`
does, and has to come first.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
from typing import TYPE_CHECKING, Any

from stretto.errors import MissingExtraError, UnknownNameError

if importlib.util.find_spec("torch") is None:
    raise MissingExtraError(
        "stretto.torch needs PyTorch, 2.9 or newer: pip install 'stretto[torch]'"
    )

import torch.distributed as dist

if TYPE_CHECKING:
    from stretto.torch.answered import sandbox
    from stretto.torch.buffers import place_buffers
    from stretto.torch.fusing import fuse
    from stretto.torch.group import StrettoGroup
    from stretto.torch.memory import deregister, empty, pool, register
    from stretto.torch.operators import (
        all_gather,
        all_gather_matmul,
        all_gather_v,
        all_reduce,
        all_reduce_,
        all_reduce_rmsnorm,
        all_reduce_rmsnorm_,
        all_reduce_rmsnorm_fp8,
        all_to_all,
        barrier,
        broadcast,
        broadcast_,
        gather,
        matmul_all_reduce,
        matmul_reduce_scatter,
        named,
        partial_matmul,
        permute,
        reduce,
        reduce_scatter,
        reduce_scatter_v,
        scatter,
    )
    from stretto.torch.options import Options
    from stretto.torch.registry import communicator
    from stretto.torch.weaving import woven

__all__ = [
    "Options",
    "StrettoGroup",
    "all_gather",
    "all_gather_matmul",
    "all_gather_v",
    "all_reduce",
    "all_reduce_",
    "all_reduce_rmsnorm",
    "all_reduce_rmsnorm_",
    "all_reduce_rmsnorm_fp8",
    "all_to_all",
    "barrier",
    "broadcast",
    "broadcast_",
    "communicator",
    "deregister",
    "empty",
    "fuse",
    "gather",
    "make_default",
    "matmul_all_reduce",
    "matmul_reduce_scatter",
    "named",
    "partial_matmul",
    "permute",
    "place_buffers",
    "pool",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_v",
    "register",
    "resume",
    "sandbox",
    "scatter",
    "suspend",
    "woven",
]

_HOMES = {
    "Options": "options",
    "StrettoGroup": "group",
    "communicator": "registry",
    "fuse": "fusing",
    "place_buffers": "buffers",
    "sandbox": "answered",
    "woven": "weaving",
    **dict.fromkeys(
        ("deregister", "empty", "pool", "register", "resume", "suspend"), "memory"
    ),
}
"""Where public names are that are no operators. Each is imported when it is first asked
for, so that the import is quick."""


def __getattr__(name: str) -> Any:
    """Import a public name from its module."""
    if name not in __all__:
        raise AttributeError(f"module 'stretto.torch' has no attribute {name!r}")
    home = f"stretto.torch.{_HOMES.get(name, 'operators')}"
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted(__all__)


def _create(opts: Any, options: Any) -> Any:
    """Make a group: torch.distributed calls this."""
    from stretto.torch.group import create

    importlib.import_module("stretto.torch.operators")  # torch.ops.stretto exists
    if os.environ.get("STRETTO_ELASTIC"):  # as its launcher says
        importlib.import_module("stretto.torch.elastic").enable()
    importlib.import_module("stretto.torch.shrinking").install()
    return create(opts, options)


_DEVICES = ("cpu", "cuda")


def make_default(*devices: str) -> None:
    """Let torch.distributed take stretto for such devices where nobody names a backend.

    For the CPU and GPUs, if none is said: as STRETTO_TORCH_DEFAULT=1 does.
    """
    for device in devices:
        if device not in _DEVICES:
            raise UnknownNameError.among("device", device, _DEVICES)
    theirs = dist.Backend.default_device_backend_map
    theirs.update(dict.fromkeys(devices or _DEVICES, "stretto"))


if "STRETTO" not in dist.Backend._plugins:
    dist.Backend.register_backend(
        "stretto", _create, extended_api=True, devices=[*_DEVICES]
    )
if os.environ.get("STRETTO_TORCH_DEFAULT", "0") not in ("", "0"):
    make_default()
if os.environ.get("TORCH_DISTRIBUTED_USE_TORCHCOMMS", "0") not in ("", "0"):
    logging.getLogger(__name__).warning(
        "TORCH_DISTRIBUTED_USE_TORCHCOMMS is set: torch.distributed asks torchcomms "
        "for 'stretto', which does not have it; unset it to use this backend"
    )
