"""NCCL on windows that it has registered as symmetric: its fastest kernels.

The windows are its own: it wants memory from its own allocator.
"""

from __future__ import annotations

import contextlib
from typing import Any

from stretto.bench.contender import CallBuffer, Contender, PreparedCall, Setup
from stretto.bench.peers._gpu import GpuPeer, OwnMemory, claim_gpu, start_nccl
from stretto.bench.peers._torch import TorchPeer
from stretto.bench.timing import Call
from stretto.bench.workload.cases import CallCase
from stretto.errors import CallError

_COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")


class NcclSymm(GpuPeer):
    """A process group and pools of registered memory."""

    @classmethod
    def open(cls, setup: Setup) -> Contender:
        """Return NCCL on all ranks (collective)."""
        torch = claim_gpu(setup)
        return cls(torch, start_nccl(setup, "nccl-symm"), setup.largest)

    def __init__(self, torch: Any, group: Any, largest: int = 0) -> None:
        self._torch = torch
        self._peer = TorchPeer(group, settle=torch.cuda.synchronize)
        self._backend = group._get_backend(torch.device("cuda"))
        self._pools: list[Any] = []
        self._windows = OwnMemory(
            torch, self._peer, self._grow, largest=largest, note="windows of its own"
        )

    def prepare(self, case: CallCase, x: CallBuffer, out: CallBuffer) -> PreparedCall:
        """Bind a case to windows of the same sizes."""
        if case.collective not in _COLLECTIVES or case.unequal:
            raise CallError("NCCL has no symmetric kernels for this")
        return self._windows.prepare(case, x, out)

    def start(self, case: CallCase, x: CallBuffer, out: CallBuffer) -> Call:
        """Return what starts a call on them."""
        return self._windows.start(case, x, out)

    def close(self) -> None:
        """Let go of the windows while the group that they belong to is there."""
        self._windows.drop()
        with contextlib.suppress(Exception):
            for pool in self._pools:
                self._backend.deregister_mem_pool(pool)
        self._pools.clear()
        self._peer.close()

    def _grow(self, nbytes: int) -> list[Any]:
        """Register larger windows (collective)."""
        torch = self._torch
        pool = torch.cuda.MemPool(self._backend.mem_allocator)
        with torch.cuda.use_mem_pool(pool):
            made = [torch.zeros(nbytes, dtype=torch.uint8, device="cuda") for _ in "io"]
        self._backend.register_mem_pool(pool, symm=True)
        self._pools.append(pool)
        return made


OFFERS = (NcclSymm,)
