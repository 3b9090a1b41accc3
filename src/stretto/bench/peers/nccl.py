"""NCCL through torch.distributed, as it is when nobody sets anything."""

from __future__ import annotations

import os

from stretto.bench.peers._own import beside_ours
from stretto.bench.peers._torch import TorchPeer
from stretto.bench.peers._torch_gpu import (
    FOR_GRAPHS,
    NO_MULTICAST,
    claim_gpu,
    start_nccl,
)
from stretto.bench.workload.contender import Contender, Setup
from stretto.errors import CallError

__all__ = ["DEVICES", "environment", "open_peer"]

DEVICES = ("cuda",)


def environment() -> dict[str, str]:
    """Return what must be set before NCCL starts."""
    return NO_MULTICAST | FOR_GRAPHS


def open_peer(setup: Setup) -> Contender:
    """Return NCCL on all ranks (collective)."""
    torch = claim_gpu(setup)
    if os.environ.get("NCCL_GRAPH_MIXING_SUPPORT") == "0":
        raise CallError("NCCL_GRAPH_MIXING_SUPPORT=0 is set; that is peer nccl-tuned")
    peer = TorchPeer(start_nccl(setup, "nccl"), settle=torch.cuda.synchronize)
    return beside_ours(torch, peer, setup)
