"""stretto in PyTorch: a backend of torch.distributed, operators and fused layers.

import stretto.torch
torch.distributed.init_process_group("stretto")
"""

from __future__ import annotations

import importlib.util

from stretto.errors import MissingExtraError

if importlib.util.find_spec("torch") is None:
    raise MissingExtraError(
        "stretto.torch needs PyTorch, 2.9 or newer: pip install 'stretto[torch]'"
    )

import torch.distributed as dist

from stretto.torch.group import StrettoGroup, create
from stretto.torch.groups import communicator
from stretto.torch.options import Options

__all__ = ["Options", "StrettoGroup", "communicator"]

if "STRETTO" not in dist.Backend._plugins:
    dist.Backend.register_backend(
        "stretto", create, extended_api=True, devices=["cpu", "cuda"]
    )
