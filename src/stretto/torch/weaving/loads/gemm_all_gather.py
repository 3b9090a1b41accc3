"""A matmul behind a gather of rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from stretto.torch.weaving.loads._load import WovenLoad
from stretto.torch.weaving.loads._matrices import HIDDEN, matrices

__all__ = ["OFFER", "GemmAllGather"]


class GemmAllGather(WovenLoad):
    """Everybody's rows times this rank's columns of a matrix."""

    name = "gemm_all_gather"

    def draw(self) -> None:
        """Make the matrix, and where the product goes."""
        hidden = HIDDEN if self.device.type == "cuda" else 64
        w = self.drawn(hidden, self.width, 1 + self.rank)
        self.use(x=w.new_empty(self.tokens // self.ranks, hidden), w=w)
        self.whole = w.new_empty(self._part * self.ranks, hidden)

    def use(self, **tensors: Tensor) -> None:
        """Multiply everybody's rows of `x` by `w`."""
        self.x, self.w = matrices(self, tensors)
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


OFFER = GemmAllGather
