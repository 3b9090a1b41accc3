"""What the peers on GPUs share: which GPU is whose, and what is never used."""

from __future__ import annotations

import os
from typing import Any

from stretto.bench.peers._torch import require_torch, start_group
from stretto.bench.workload.contender import Setup
from stretto.errors import CallError, MissingExtraError

__all__ = ["FOR_GRAPHS", "NO_MULTICAST", "claim_gpu", "start_nccl"]

NO_MULTICAST = {
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "NVSHMEM_DISABLE_NVLS": "1",
}
"""NVLink multicast is left alone on the machines we have, by everybody."""
FOR_GRAPHS = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0", "CUDA_MODULE_LOADING": "EAGER"}
"""Nothing may look at events, or load code, while another thread captures."""


def claim_gpu(setup: Setup) -> Any:
    """Return PyTorch, with this rank's GPU the current one."""
    torch = require_torch()
    if not torch.cuda.is_available():
        raise MissingExtraError("this PyTorch has no GPU")
    local = int(os.environ.get("LOCAL_RANK", setup.rank))
    torch.cuda.set_device(local % torch.cuda.device_count())
    return torch


_MIXING = "NCCL_GRAPH_MIXING_SUPPORT"
_read: list[str | None] = []
"""What NCCL found in the environment when this process first started it."""


def start_nccl(setup: Setup, name: str) -> Any:
    """Return a process group of NCCL whose communicator exists (collective)."""
    torch = claim_gpu(setup)
    now = os.environ.get(_MIXING)
    if not _read:
        _read.append(now)
    if _read[0] != now:
        raise CallError(
            f"NCCL has read {_MIXING}={_read[0]} in this process, which {name} wants "
            f"to be {now}; ask for it in a run of its own"
        )
    group = start_group(setup, "nccl", name)
    torch.distributed.all_reduce(torch.ones(1, device="cuda"), group=group)
    torch.cuda.synchronize()
    return group
