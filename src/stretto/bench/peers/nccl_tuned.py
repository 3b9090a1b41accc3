"""NCCL with NCCL_GRAPH_MIXING_SUPPORT=0: faster, and no longer for every use.

A communicator may then not be captured and called, nor be in several graphs, at once.
NCCL reads the variable once a process, so this peer has a run of its own.
"""

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

__all__ = ["ALONE", "DEVICES", "environment", "open_peer"]

DEVICES = ("cuda",)
ALONE = True


def environment() -> dict[str, str]:
    """Return what must be set before NCCL starts."""
    return {**NO_MULTICAST, **FOR_GRAPHS, "NCCL_GRAPH_MIXING_SUPPORT": "0"}


def open_peer(setup: Setup) -> Contender:
    """Return NCCL on all ranks (collective)."""
    torch = claim_gpu(setup)
    if os.environ.get("NCCL_GRAPH_MIXING_SUPPORT") != "0":
        raise CallError("NCCL_GRAPH_MIXING_SUPPORT=0 must be set before ranks start")
    peer = TorchPeer(start_nccl(setup, "nccl-tuned"), settle=torch.cuda.synchronize)
    return beside_ours(torch, peer, setup)
