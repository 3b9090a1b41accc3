"""A matmul behind a gather of rows, and one before a sum of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from stretto.errors import CallError
from stretto.torch.sums import added
from stretto.torch.weaving.loads.load import WovenLoad

__all__ = ["GemmAllGather", "GemmReduceScatter"]


class GemmAllGather(WovenLoad):
    """Everybody's rows times this rank's columns of a matrix."""

    name = "gemm_all_gather"
    _HIDDEN = 8192

    def draw(self) -> None:
        """Make the matrix, and where the product goes."""
        hidden = self._HIDDEN if self.device.type == "cuda" else 64
        w = self.drawn(hidden, self.width, 1 + self.rank)
        self.use(x=w.new_empty(self.tokens // self.ranks, hidden), w=w)
        self.whole = w.new_empty(self._part * self.ranks, hidden)

    def use(self, **tensors: Tensor) -> None:
        """Multiply everybody's rows of `x` by `w`."""
        self.x, self.w = _both(self, tensors)
        self._part, self.wide_in = int(self.x.shape[0]), int(self.x.shape[1])
        self.y = self.x.new_empty(self._part * self.ranks, self.w.shape[1])

    def rows(self, source: int, target: int) -> int:
        """Return how many rows one rank has for another."""
        return self._part

    def fresh(self, seed: int) -> None:
        """Draw the input anew."""
        self.x.copy_(self.like(self.x, seed * 64 + self.rank))

    def input(self, shift: int) -> Tensor:
        """Return what this rank has for another."""
        return self.x

    def target(self, shift: int, own: Tensor | None) -> Tensor | None:
        """Return where results of a share are to lie."""
        return self.y.split(self._part)[(self.rank + shift) % self.ranks]

    def do(self, shift: int, rows: slice, come: Tensor, out: Tensor | None) -> None:
        """Compute rows of a share."""
        torch.mm(come, self.w, out=out)

    def finish(self, back: Tensor | None) -> Tensor:
        """Return the result."""
        return self.y

    def plain(self, dist: Any, group: Any) -> Tensor:
        """Do the call by one collective after the other."""
        dist.all_gather_into_tensor(self.whole, self.x, group=group)
        return torch.mm(self.whole, self.w, out=self.y)

    def by_torch(self, group_name: str) -> Callable[[], Any] | None:
        """Return the call by torch's fused operator."""
        fused = torch.ops.symm_mem.fused_all_gather_matmul
        return lambda: fused(self.x, [self.w], 0, group_name)


class GemmReduceScatter(WovenLoad):
    """This rank's rows of the sum of everybody's products."""

    name = "gemm_reduce_scatter"
    _HIDDEN = 8192

    def draw(self) -> None:
        """Make the matrix."""
        hidden = self._HIDDEN if self.device.type == "cuda" else 64
        w = self.drawn(self.width, hidden, 1 + self.rank)
        self.use(x=w.new_empty(self.tokens // self.ranks * self.ranks, w.shape[0]), w=w)
        self.y = w.new_empty(self._part * self.ranks, hidden)
        self.out = w.new_empty(self._part, hidden)

    def use(self, **tensors: Tensor) -> None:
        """Add up everybody's `x @ w`, and give this rank its rows."""
        self.x, self.w = _both(self, tensors)
        if self.x.shape[0] % self.ranks:
            raise CallError(
                f"{self.name}: x has {self.x.shape[0]} rows; want as many for each of "
                f"{self.ranks} ranks"
            )
        self._part = int(self.x.shape[0]) // self.ranks
        self.wide_back = int(self.w.shape[1])

    def rows(self, source: int, target: int) -> int:
        """Return how many rows one rank has for another."""
        return self._part

    def fresh(self, seed: int) -> None:
        """Draw the input anew."""
        self.x.copy_(self.like(self.x, seed * 64 + self.rank))

    def input(self, shift: int) -> Tensor:
        """Return what this rank has for another."""
        return self.x.split(self._part)[(self.rank + shift) % self.ranks]

    def do(self, shift: int, rows: slice, come: Tensor, out: Tensor | None) -> None:
        """Compute rows of a share."""
        torch.mm(come, self.w, out=out)

    def finish(self, back: Tensor | None) -> Tensor:
        """Return the result."""
        assert back is not None
        return added(back, self.ranks, [self._part, self.wide_back])

    def plain(self, dist: Any, group: Any) -> Tensor:
        """Do the call by one collective after the other."""
        torch.mm(self.x, self.w, out=self.y)
        dist.reduce_scatter_tensor(self.out, self.y, group=group)
        return self.out

    def by_torch(self, group_name: str) -> Callable[[], Any] | None:
        """Return the call by torch's fused operator."""
        fused = torch.ops.symm_mem.fused_matmul_reduce_scatter
        return lambda: fused(self.x, self.w, "sum", 0, group_name)


def _both(load: WovenLoad, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Return x and w, and take their type for what is moved."""
    if {*tensors} != {"x", "w"}:
        raise CallError(f"{load.name}: {', '.join(tensors) or 'no'} tensors; want x, w")
    x, w = tensors["x"], tensors["w"]
    good = x.dim() == w.dim() == 2 and x.shape[1] == w.shape[0] and x.dtype == w.dtype
    if x.is_cuda and x.device.index != torch.cuda.current_device():
        raise CallError(
            f"{load.name}: x is on {x.device}, and this rank works on GPU "
            f"{torch.cuda.current_device()}; want torch.cuda.set_device before"
        )
    if good and not x.numel() * w.numel():
        raise CallError(f"{load.name}: x or w has no elements; want some")
    if not good or x.device != w.device or not x.is_contiguous():
        raise CallError(
            f"{load.name}: x has shape {tuple(x.shape)} of {x.dtype} on {x.device}, w "
            f"{tuple(w.shape)} of {w.dtype} on {w.device}; want (rows, k), contiguous, "
            "and (k, columns) of one type on one device"
        )
    load.dtype, load.device = x.dtype, x.device
    return x.detach(), w.detach()
