"""A matmul before a sum of its rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from stretto.errors import CallError
from stretto.torch.sums import added
from stretto.torch.weaving.loads._load import WovenLoad
from stretto.torch.weaving.loads._matrices import HIDDEN, matrices

__all__ = ["OFFER", "GemmReduceScatter"]


class GemmReduceScatter(WovenLoad):
    """This rank's rows of the sum of everybody's products."""

    name = "gemm_reduce_scatter"

    def draw(self) -> None:
        """Make the matrix."""
        hidden = HIDDEN if self.device.type == "cuda" else 64
        w = self.drawn(self.width, hidden, 1 + self.rank)
        self.use(x=w.new_empty(self.tokens // self.ranks * self.ranks, w.shape[0]), w=w)
        self.y = w.new_empty(self._part * self.ranks, hidden)
        self.out = w.new_empty(self._part, hidden)

    def use(self, **tensors: Tensor) -> None:
        """Add up everybody's `x @ w`, and give this rank its rows."""
        self.x, self.w = matrices(self, tensors)
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


OFFER = GemmReduceScatter
