"""PyTorch's symmetric memory: one-shot all_reduce when small, two-shot when not."""

from __future__ import annotations

from functools import partial
from typing import Any

from stretto.bench.peers._arrays import GpuArrays
from stretto.bench.peers._torch import as_tensor
from stretto.bench.peers._torch_gpu import (
    FOR_GRAPHS,
    NO_MULTICAST,
    claim_gpu,
    start_nccl,
)
from stretto.bench.workload.cases import Case
from stretto.bench.workload.contender import Buffer, Prepared, Setup
from stretto.errors import CallError

__all__ = ["DEVICES", "TorchSymm", "environment", "open_peer"]

DEVICES = ("cuda",)
_ONE_SHOT_UP_TO = 256 << 10
_LARGEST = 256 << 20


def environment() -> dict[str, str]:
    """Return what must be set before it starts."""
    return NO_MULTICAST | FOR_GRAPHS


def open_peer(setup: Setup) -> TorchSymm:
    """Return it on all ranks (collective)."""
    torch = claim_gpu(setup)
    return TorchSymm(torch, start_nccl(setup, "torch-symm"), setup.largest)


class TorchSymm:
    """One symmetric buffer, cut to size."""

    def __init__(self, torch: Any, group: Any, largest: int = 0) -> None:
        import torch.distributed._symmetric_memory as symmetric

        self._torch, self._group, self._symmetric = torch, group, symmetric
        self._largest = min(largest, _LARGEST)
        self._buffer: Any = None

    def prepare(self, case: Case, x: Buffer, out: Buffer) -> Prepared:
        """Bind an all_reduce."""
        torch = self._torch
        nbytes = case.nbytes
        if case.collective != "all_reduce" or case.op != "sum" or nbytes > _LARGEST:
            raise CallError("torch symmetric memory sums in all_reduce, to 256 MB")
        given = as_tensor(x, case.dtype)
        if self._buffer is None or self._buffer.numel() < nbytes:
            self._grow(max(nbytes, self._largest))
        mine = self._buffer[: given.numel() * given.element_size()].view(given.dtype)
        source = GpuArrays.wrap(torch, mine, mine, case.dtype)
        ops, name = torch.ops.symm_mem, self._group.group_name
        if nbytes <= _ONE_SHOT_UP_TO:
            target = as_tensor(out, case.dtype)
            call = partial(ops.one_shot_all_reduce_out, mine, "sum", name, target)
            return Prepared(
                call=call, x=source, out=out, note="one-shot",
                settle=torch.cuda.synchronize,
            )  # fmt: skip
        call = partial(ops.two_shot_all_reduce_, mine, "sum", name)
        return Prepared(
            call=call, x=source, out=source, note="two-shot, in place",
            settle=torch.cuda.synchronize,
        )  # fmt: skip

    def close(self) -> None:
        """Let go of the buffer."""
        self._buffer = None

    def _grow(self, nbytes: int) -> None:
        """Allocate and exchange a larger buffer (collective)."""
        torch = self._torch
        size = max(nbytes, 1 << 20)
        self._buffer = self._symmetric.empty(size, dtype=torch.uint8, device="cuda")
        self._symmetric.rendezvous(self._buffer, self._group)
