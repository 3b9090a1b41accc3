"""Kinds of woven calls, one file each: how they are cut, computed and ended."""

from __future__ import annotations

from typing import Any

from stretto.registry import Registry
from stretto.torch.weaving.loads._load import WovenLoad

__all__ = ["WovenLoad", "load_of"]

_loads: Registry[object] = Registry("load", __name__)


def load_of(name: str, *args: Any, **more: Any) -> WovenLoad:
    """Return a load of a kind, such as gemm_all_gather."""
    kind = _loads.offered_class(name.replace("_", "-"), WovenLoad)
    return kind(*args, **more)
