"""The kinds of woven calls, by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stretto.torch.weaving.loads.attention import AllGatherAttention
from stretto.torch.weaving.loads.experts import MoeDispatchCombine
from stretto.torch.weaving.loads.gemm import GemmAllGather, GemmReduceScatter
from stretto.torch.weaving.loads.kv import KvTransfer
from stretto.torch.weaving.loads.load import WovenLoad

__all__ = ["made"]

_KINDS: Sequence[type[WovenLoad]] = (
    GemmAllGather, GemmReduceScatter, AllGatherAttention, MoeDispatchCombine,
    KvTransfer,
)  # fmt: skip


def made(name: str, *args: Any, **more: Any) -> WovenLoad:
    """Return a load of a kind."""
    return {kind.name: kind for kind in _KINDS}[name](*args, **more)
