"""What the peers on GPUs share: which GPU is whose, NCCL's groups, their memory."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar

from stretto.bench.contender import CallBuffer, Contender, PreparedCall, Setup
from stretto.bench.peers._arrays import GpuArrays
from stretto.bench.peers._torch import TorchPeer, as_tensor, require_torch, start_group
from stretto.bench.timing import Call
from stretto.bench.workload.cases import CallCase
from stretto.errors import CallError, MissingExtraError

Make = Callable[[int], list[Any]]
"""Returns two arrays of so many bytes (collective)."""
MIXING = "NCCL_GRAPH_MIXING_SUPPORT"
_read: list[str | None] = []
"""What NCCL found in the environment when this process first started it."""


class GpuPeer(Contender):
    """A peer on GPUs, and what must be set before it starts."""

    DEVICES = ("cuda",)
    NEEDS = ("torch", "pip install torch")
    SETTINGS: ClassVar[Mapping[str, str]] = {}

    @classmethod
    def environment(cls, path: str = "") -> Mapping[str, str]:
        """Leave NVLink multicast alone, on the machines we have, and graphs in peace.

        Nothing may look at events, or load code, while another thread captures.
        """
        return {
            "NCCL_NVLS_ENABLE": "0",
            "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
            "NVSHMEM_DISABLE_NVLS": "1",
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
            "CUDA_MODULE_LOADING": "EAGER",
            **cls.SETTINGS,
        }


class NcclPeer(TorchPeer, GpuPeer):
    """NCCL through torch.distributed, or what stands in for it.

    It registers what a graph captures with its peers' GPUs; memory of `comm.empty()` is
    mapped by us already, and its graphs then never end: beside that it has its own.
    """

    @classmethod
    def open(cls, setup: Setup) -> Contender:
        """Return it on all ranks (collective)."""
        torch = claim_gpu(setup)
        cls.check()
        group = start_nccl(setup, cls.__name__)
        peer = cls(group, settle=torch.cuda.synchronize)
        return plain_memory(torch, peer, setup) if setup.registered else peer

    @classmethod
    def check(cls) -> None:
        """Refuse settings with which it would be another peer."""


def claim_gpu(setup: Setup) -> Any:
    """Return PyTorch, with this rank's GPU the current one."""
    torch = require_torch()
    if not torch.cuda.is_available():
        raise MissingExtraError("this PyTorch has no GPU")
    local = int(os.environ.get("LOCAL_RANK", setup.rank))
    torch.cuda.set_device(local % torch.cuda.device_count())
    return torch


def start_nccl(setup: Setup, name: str) -> Any:
    """Return a process group of NCCL whose communicator exists (collective)."""
    torch = claim_gpu(setup)
    now = os.environ.get(MIXING)
    if not _read:
        _read.append(now)
    if _read[0] != now:
        raise CallError(
            f"NCCL has read {MIXING}={_read[0]} in this process, which {name} wants "
            f"to be {now}; ask for it in a run of its own"
        )
    group = start_group(setup, "nccl", name)
    torch.distributed.all_reduce(torch.ones(1, device="cuda"), group=group)
    torch.cuda.synchronize()
    return group


class OwnMemory(Contender):
    """A peer on two arrays of its own that are cut to size.

    Where it cannot, or should not, use ours: the fastest kernels of NCCL want windows
    from its own allocator.
    """

    def __init__(
        self, torch: Any, peer: Contender, make: Make, *, largest: int, note: str
    ) -> None:
        self._torch, self._peer, self._make = torch, peer, make
        self._largest, self._note = largest, note
        self._arrays: list[Any] = []

    def prepare(self, case: CallCase, x: CallBuffer, out: CallBuffer) -> PreparedCall:
        """Bind a case to arrays of the same sizes."""
        prepared = self._peer.prepare(case, *self._mine(case, x, out))
        return replace(prepared, note=f"{self._note}; {prepared.note}".rstrip("; "))

    def start(self, case: CallCase, x: CallBuffer, out: CallBuffer) -> Call:
        """Return what starts a call on them."""
        return self._peer.start(case, *self._mine(case, x, out))

    def _mine(
        self, case: CallCase, x: CallBuffer, out: CallBuffer
    ) -> tuple[CallBuffer, CallBuffer]:
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


def plain_memory(torch: Any, peer: Contender, setup: Setup) -> Contender:
    """Return a peer whose calls work on memory of PyTorch's own allocator."""

    def make(nbytes: int) -> list[Any]:
        return [torch.zeros(nbytes, dtype=torch.uint8, device="cuda") for _ in "io"]

    return OwnMemory(
        torch, peer, make, largest=setup.largest, note="plain memory of its own"
    )
