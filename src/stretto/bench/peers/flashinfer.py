"""FlashInfer's all_reduce for serving (TensorRT-LLM's kernels), where it is installed.

Its kernels are compiled when they are first called, by nvcc. Their workspace has no
multicast.
"""

from __future__ import annotations

import importlib
from functools import partial
from typing import Any

from stretto.bench.contender import CallBuffer, Contender, PreparedCall, Setup
from stretto.bench.peers._gpu import GpuPeer, claim_gpu, start_nccl
from stretto.bench.peers._torch import as_tensor
from stretto.bench.workload.cases import CallCase
from stretto.errors import CallError

_RANKS = (2, 4, 8, 16)
_LARGEST = 64 << 20
_ROW = 8192
"""Elements of a row, at most: a row is a cluster's."""


class FlashInfer(GpuPeer):
    """One workspace, as large as the largest buffer."""

    NEEDS = ("flashinfer", "pip install flashinfer-python")

    @classmethod
    def open(cls, setup: Setup) -> Contender:
        """Return it on all ranks (collective)."""
        if (n := setup.num_ranks) not in _RANKS:
            raise CallError(f"flashinfer is for 2, 4, 8 or 16 ranks, not {n}")
        torch = claim_gpu(setup)
        group = start_nccl(setup, "flashinfer")
        return cls(torch, importlib.import_module("flashinfer.comm"), group, setup)

    def __init__(self, torch: Any, comm: Any, group: Any, setup: Setup) -> None:
        self._torch, self._comm, self._group, self._setup = torch, comm, group, setup
        self._workspace: Any = None
        self._room = 0

    def prepare(self, case: CallCase, x: CallBuffer, out: CallBuffer) -> PreparedCall:
        """Bind an all_reduce (collective where the workspace must grow)."""
        given = as_tensor(x, case.dtype)
        row = _row(given.numel())
        if case.collective != "all_reduce" or case.op != "sum":
            raise CallError("flashinfer sums in all_reduce")
        if case.dtype not in ("bfloat16", "float16"):
            raise CallError(
                f"flashinfer's workspace is for 16-bit floats: {case.dtype}"
            )
        if not row or case.nbytes > _LARGEST:
            raise CallError("flashinfer takes whole cells of 16 bytes, to 64 MB")
        if case.nbytes > self._room:
            self._grow(max(case.nbytes, min(self._setup.largest, _LARGEST)))
        target = as_tensor(out, case.dtype)
        call = partial(
            self._comm.allreduce_fusion,
            given.view(-1, row),
            self._workspace,
            self._comm.AllReduceFusionPattern.kAllReduce,
            launch_with_pdl=True,
            output=target.view(-1, row),
            fp32_acc=True,
        )
        return PreparedCall(
            call=call, x=x, out=out, settle=self._torch.cuda.synchronize
        )

    def close(self) -> None:
        """Let go of the workspace."""
        if self._workspace is not None:
            self._workspace.destroy()
        self._workspace, self._room = None, 0

    def _grow(self, nbytes: int) -> None:
        """Make a workspace for so many bytes (collective)."""
        self._torch.cuda.synchronize()
        self.close()
        self._workspace = self._comm.create_allreduce_fusion_workspace(
            backend="trtllm",
            world_size=self._setup.num_ranks,
            rank=self._setup.rank,
            max_token_num=-(-nbytes // (2 * _ROW)),
            hidden_dim=_ROW,
            dtype=self._torch.bfloat16,
            group=self._group,
        )
        self._room = nbytes


def _row(count: int) -> int:
    """Return the elements of a row: the most that divide a vector; 0: none do."""
    row = _ROW
    while row >= 8 and count % row:
        row //= 2
    return row if row >= 8 and count else 0


OFFERS = (FlashInfer,)
