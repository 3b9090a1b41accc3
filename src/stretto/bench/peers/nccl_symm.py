"""NCCL on windows that it has registered as symmetric: its fastest kernels.

The windows are its own: it wants memory from its own allocator.
"""

from __future__ import annotations

from typing import Any

from stretto.bench.cases import Case
from stretto.bench.contender import Buffer, Prepared, Setup
from stretto.bench.peers._arrays import GpuArrays
from stretto.bench.peers._torch import TorchPeer
from stretto.bench.peers._torch_gpu import (
    FOR_GRAPHS,
    NO_MULTICAST,
    claim_gpu,
    start_nccl,
)
from stretto.errors import CallError

__all__ = ["DEVICES", "NcclSymm", "environment", "open_peer"]

DEVICES = ("cuda",)
_COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")


def environment() -> dict[str, str]:
    """Return what must be set before NCCL starts."""
    return NO_MULTICAST | FOR_GRAPHS


def open_peer(setup: Setup) -> NcclSymm:
    """Return NCCL on all ranks (collective)."""
    torch = claim_gpu(setup)
    return NcclSymm(torch, start_nccl(setup, "nccl-symm"), setup.largest)


class NcclSymm:
    """A process group and a pool of registered memory."""

    def __init__(self, torch: Any, group: Any, largest: int = 0) -> None:
        self._torch, self._group, self._largest = torch, group, largest
        self._peer = TorchPeer(group, settle=torch.cuda.synchronize)
        self._backend = group._get_backend(torch.device("cuda"))
        self._windows: list[Any] = []
        self._pools: list[Any] = []

    def prepare(self, case: Case, x: Buffer, out: Buffer) -> Prepared:
        """Bind a case to windows of the same sizes."""
        if case.collective not in _COLLECTIVES or case.unequal:
            raise CallError("NCCL has no symmetric kernels for this")
        sizes = [b.given.numel() * b.given.element_size() for b in (x, out)]
        if not self._windows or self._windows[0].numel() < max(sizes):
            self._grow(max(*sizes, self._largest))
        ours = [
            self._as_buffer(window[:nbytes].view(buffer.given.dtype), case.dtype)
            for window, nbytes, buffer in zip(
                self._windows, sizes, (x, out), strict=True
            )
        ]
        prepared = self._peer.prepare(case, ours[0], ours[1])
        note = f"windows of its own; {prepared.note}".rstrip("; ")
        return Prepared(
            call=prepared.call, x=prepared.x, out=prepared.out, note=note,
            settle=prepared.settle,
        )  # fmt: skip

    def close(self) -> None:
        """Let go of the group; windows go with it."""
        self._peer.close()

    def _grow(self, nbytes: int) -> None:
        """Register larger windows (collective)."""
        torch = self._torch
        pool = torch.cuda.MemPool(self._backend.mem_allocator)
        with torch.cuda.use_mem_pool(pool):
            made = [torch.zeros(nbytes, dtype=torch.uint8, device="cuda") for _ in "io"]
        self._backend.register_mem_pool(pool, symm=True)
        self._pools.append(pool)  # what was registered must outlive the group
        self._windows = made

    def _as_buffer(self, tensor: Any, dtype: str) -> Buffer:
        return GpuArrays.wrap(self._torch, tensor, tensor, dtype)
