"""stretto in PyTorch: a backend of torch.distributed, operators and fused layers.

import stretto.torch
torch.distributed.init_process_group("stretto")
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
from typing import TYPE_CHECKING, Any

from stretto.errors import MissingExtraError

if importlib.util.find_spec("torch") is None:
    raise MissingExtraError(
        "stretto.torch needs PyTorch, 2.9 or newer: pip install 'stretto[torch]'"
    )

import torch.distributed as dist

if TYPE_CHECKING:
    from stretto.torch.group import StrettoGroup
    from stretto.torch.groups import communicator
    from stretto.torch.memory import deregister, empty, pool, register
    from stretto.torch.options import Options
    from stretto.torch.placing import place_buffers

__all__ = [
    "Options",
    "StrettoGroup",
    "communicator",
    "deregister",
    "empty",
    "place_buffers",
    "pool",
    "register",
]

_HOMES = {
    "Options": "stretto.torch.options",
    "StrettoGroup": "stretto.torch.group",
    "communicator": "stretto.torch.groups",
    "deregister": "stretto.torch.memory",
    "empty": "stretto.torch.memory",
    "place_buffers": "stretto.torch.placing",
    "pool": "stretto.torch.memory",
    "register": "stretto.torch.memory",
}
"""What is imported when it is first asked for, so that the import is quick."""


def __getattr__(name: str) -> Any:
    """Import a public name from its module."""
    if name not in _HOMES:
        raise AttributeError(f"module 'stretto.torch' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted(__all__)


def _create(opts: Any, options: Any) -> Any:
    """Make a group: torch.distributed calls this."""
    from stretto.torch.group import create

    return create(opts, options)


if "STRETTO" not in dist.Backend._plugins:
    dist.Backend.register_backend(
        "stretto", _create, extended_api=True, devices=["cpu", "cuda"]
    )
if os.environ.get("TORCH_DISTRIBUTED_USE_TORCHCOMMS", "0") not in ("", "0"):
    logging.getLogger(__name__).warning(
        "TORCH_DISTRIBUTED_USE_TORCHCOMMS is set: torch.distributed asks torchcomms "
        "for 'stretto', which does not have it; unset it to use this backend"
    )
