"""MSCCL++ through its library that stands in for NCCL, where that is preloaded.

It answers NCCL's calls, so torch.distributed need not know: start everything with
LD_PRELOAD=.../libmscclpp_nccl.so, in a run without the other peers of NCCL.
"""

from __future__ import annotations

import importlib.util
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
from stretto.errors import MissingExtraError

__all__ = ["ALONE", "DEVICES", "environment", "open_peer"]

DEVICES = ("cuda",)
ALONE = importlib.util.find_spec("mscclpp") is not None
"""Where it is missing it needs no run of its own to say so."""


def environment() -> dict[str, str]:
    """Return what must be set before it starts."""
    return {**NO_MULTICAST, **FOR_GRAPHS, "MSCCLPP_FORCE_DISABLE_NVLS": "1"}


def open_peer(setup: Setup) -> Contender:
    """Return it on all ranks (collective)."""
    if importlib.util.find_spec("mscclpp") is None:
        raise MissingExtraError("no mscclpp: build it from microsoft/mscclpp")
    if "libmscclpp_nccl" not in os.environ.get("LD_PRELOAD", ""):
        raise MissingExtraError("mscclpp is there: set LD_PRELOAD=libmscclpp_nccl.so")
    torch = claim_gpu(setup)
    peer = TorchPeer(start_nccl(setup, "mscclpp"), settle=torch.cuda.synchronize)
    return beside_ours(torch, peer, setup)
