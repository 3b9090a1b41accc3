"""Move tensors between processes and machines: one-sided, by layout, awaited.

In: memory with a name and a layout, here and at a peer. Out: the elements of one in the
other, once each, and whoever waits for them told. Never: pickles, or bytes in memory
that has been given to someone else.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from stretto.errors import (
    ChecksumError,
    EngineLost,
    LayoutError,
    StaleMemory,
    TransferCancelled,
    TransferError,
    TransferTimeout,
)

if TYPE_CHECKING:
    from stretto.transfer.engine.engine import Engine
    from stretto.transfer.layouts import Layout, kv_layout
    from stretto.transfer.plans import deal, plan, prove, prove_deal, prove_tiles

__all__ = [
    "ChecksumError",
    "Engine",
    "EngineLost",
    "Layout",
    "LayoutError",
    "StaleMemory",
    "TransferCancelled",
    "TransferError",
    "TransferTimeout",
    "deal",
    "kv_layout",
    "plan",
    "prove",
    "prove_deal",
    "prove_tiles",
]

_HOMES = {
    "Engine": "stretto.transfer.engine.engine",
    "Layout": "stretto.transfer.layouts",
    "kv_layout": "stretto.transfer.layouts",
    "deal": "stretto.transfer.plans",
    "plan": "stretto.transfer.plans.plan",
    "prove": "stretto.transfer.plans",
    "prove_deal": "stretto.transfer.plans",
    "prove_tiles": "stretto.transfer.plans",
}


def __getattr__(name: str) -> Any:
    """Import a public name from its home."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value
