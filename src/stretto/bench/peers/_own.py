"""A peer that works on memory of its own, where it cannot, or should not, use ours.

NCCL registers what a graph captures with its peers' GPUs; memory of `comm.empty()` is
mapped by us already, and its graphs then never end. And its fastest kernels want
windows from its own allocator.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from stretto.bench.peers._arrays import GpuArrays
from stretto.bench.peers._torch import TorchPeer, as_tensor
from stretto.bench.workload.cases import Case
from stretto.bench.workload.contender import Buffer, Contender, Prepared, Setup
from stretto.bench.workload.timing import Call
from stretto.errors import CallError

__all__ = ["Make", "OwnMemory", "beside_ours", "plain_memory"]

Make = Callable[[int], list[Any]]
"""Returns two arrays of so many bytes (collective)."""


class OwnMemory:
    """A peer, and two arrays that are cut to size.

    `peer` is a contender; calls can be started where it can start them.
    """

    def __init__(
        self, torch: Any, peer: Any, make: Make, *, largest: int, note: str
    ) -> None:
        self._torch, self._peer, self._make = torch, peer, make
        self._largest, self._note = largest, note
        self._arrays: list[Any] = []

    def prepare(self, case: Case, x: Buffer, out: Buffer) -> Prepared:
        """Bind a case to arrays of the same sizes."""
        prepared: Prepared = self._peer.prepare(case, *self._mine(case, x, out))
        return replace(prepared, note=f"{self._note}; {prepared.note}".rstrip("; "))

    def start(self, case: Case, x: Buffer, out: Buffer) -> Call:
        """Return what starts a call on them."""
        if not hasattr(self._peer, "start"):
            raise CallError("this peer starts no calls to be waited for later")
        started: Call = self._peer.start(case, *self._mine(case, x, out))
        return started

    def _mine(self, case: Case, x: Buffer, out: Buffer) -> tuple[Buffer, Buffer]:
        given = [as_tensor(b, case.dtype) for b in (x, out)]
        sizes = [t.numel() * t.element_size() for t in given]
        if not self._arrays or self._arrays[0].numel() < max(sizes):
            self._arrays = self._make(max(*sizes, self._largest))
        mine = []
        for array, nbytes, tensor in zip(self._arrays, sizes, given, strict=True):
            part = array[:nbytes].view(tensor.dtype)
            mine.append(GpuArrays.wrap(self._torch, part, part, case.dtype))
        source, target = mine
        return source, source if x is out else target

    def drop(self) -> None:
        """Let go of the arrays; nothing uses them any more."""
        with contextlib.suppress(Exception):
            self._torch.cuda.synchronize()
        self._arrays = []
        gc.collect()

    def close(self) -> None:
        """Let go of the arrays, then of the peer."""
        self.drop()
        self._peer.close()


def beside_ours(torch: Any, peer: TorchPeer, setup: Setup) -> Contender:
    """Return a peer of NCCL; on plain memory where ours is that of `comm.empty()`."""
    return plain_memory(torch, peer, setup) if setup.registered else peer


def plain_memory(torch: Any, peer: Any, setup: Setup) -> Contender:
    """Return a peer whose calls work on memory of PyTorch's own allocator."""

    def make(nbytes: int) -> list[Any]:
        return [torch.zeros(nbytes, dtype=torch.uint8, device="cuda") for _ in "io"]

    return OwnMemory(
        torch, peer, make, largest=setup.largest, note="plain memory of its own"
    )
