"""Gloo through torch.distributed, one thread a rank, on the CPU."""

from __future__ import annotations

from stretto.bench.peers._torch import TorchPeer, require_torch, start_group
from stretto.bench.workload.contender import Setup

__all__ = ["DEVICES", "open_peer"]

DEVICES = ("cpu",)


def open_peer(setup: Setup) -> TorchPeer:
    """Return Gloo on all ranks (collective)."""
    require_torch().set_num_threads(1)
    return TorchPeer(start_group(setup, "gloo", "gloo"))
