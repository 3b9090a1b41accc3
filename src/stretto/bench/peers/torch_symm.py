"""PyTorch's symmetric memory: one-shot all_reduce when small, two-shot when not."""

from __future__ import annotations

from functools import partial
from typing import Any

from stretto.bench.contender import CallBuffer, Contender, PreparedCall, Setup
from stretto.bench.peers._arrays import GpuArrays
from stretto.bench.peers._gpu import GpuPeer, claim_gpu, start_nccl
from stretto.bench.peers._torch import as_tensor
from stretto.bench.workload.cases import CallCase
from stretto.errors import CallError

_ONE_SHOT_UP_TO = 256 << 10
_LARGEST = 256 << 20


class TorchSymm(GpuPeer):
    """One symmetric buffer, cut to size."""

    @classmethod
    def open(cls, setup: Setup) -> Contender:
        """Return it on all ranks (collective)."""
        torch = claim_gpu(setup)
        return cls(torch, start_nccl(setup, "torch-symm"), setup.largest)

    def __init__(self, torch: Any, group: Any, largest: int = 0) -> None:
        import torch.distributed._symmetric_memory as symmetric

        self._torch, self._group, self._symmetric = torch, group, symmetric
        self._largest = min(largest, _LARGEST)
        self._buffer: Any = None

    def prepare(self, case: CallCase, x: CallBuffer, out: CallBuffer) -> PreparedCall:
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
            note = "one-shot"
        else:
            call = partial(ops.two_shot_all_reduce_, mine, "sum", name)
            out, note = source, "two-shot, in place"
        return PreparedCall(
            call=call, x=source, out=out, note=note, settle=torch.cuda.synchronize
        )

    def close(self) -> None:
        """Let go of the buffer."""
        self._buffer = None

    def _grow(self, nbytes: int) -> None:
        """Allocate and exchange a larger buffer (collective)."""
        torch = self._torch
        size = max(nbytes, 1 << 20)
        self._buffer = self._symmetric.empty(size, dtype=torch.uint8, device="cuda")
        self._symmetric.rendezvous(self._buffer, self._group)


OFFERS = (TorchSymm,)
