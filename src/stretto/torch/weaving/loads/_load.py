"""What a woven call computes: one class a kind, the same for a weave and without one.

A load says how large shares are, what a rank has, how a part is computed and how a call
ends. `plain` is the call without a weave: the library's collective, then the matmuls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor

from stretto.compiler.weaves import LOADS, LoadShape
from stretto.errors import CallError

__all__ = ["WovenLoad"]


class WovenLoad:
    """A kind of call on one rank: sizes, input, and how to compute."""

    name: ClassVar[str]

    def __init__(
        self, rank: int, ranks: int, tokens: int, width: int, device: str = "cuda"
    ) -> None:
        """Say sizes: `tokens` are all ranks' rows, `width` columns of the weights.

        `draw` or `use` gives it tensors.
        """
        self.rank, self.ranks, self.tokens, self.width = rank, ranks, tokens, width
        self.device = torch.device(device)
        self.dtype = torch.bfloat16 if self.device.type == "cuda" else torch.float32
        self.shape: LoadShape = LOADS[self.name]
        self.wide_in = self.wide_back = 0
        """Columns of what comes, and of what goes."""

    def draw(self) -> None:
        """Make random weights, the same for the same sizes, and room for the input."""
        raise NotImplementedError

    def use(self, **tensors: Tensor) -> None:
        """Work with tensors of the caller's; input is read from them in every call."""
        raise CallError(
            f"{self.name} with tensors of yours: it is there to be measured; want "
            "gemm_all_gather or gemm_reduce_scatter"
        )

    def drawn(self, rows: int, columns: int, seed: int) -> Tensor:
        """Return random numbers, such that sums of products are about 1."""
        gen = torch.Generator(self.device).manual_seed(seed)
        made = torch.empty(rows, columns, device=self.device, dtype=self.dtype)
        return made.normal_(0, columns**-0.5, generator=gen)

    def like(self, known: Tensor, seed: int) -> Tensor:
        """Return random numbers of a known shape."""
        return self.drawn(known.shape[0], known.shape[1], seed)

    def rows(self, source: int, target: int) -> int:
        """Return how many rows a rank has for another (for itself, too)."""
        raise NotImplementedError

    def results(self, maker: int, owner: int) -> int:
        """Return how many rows of results a rank makes for another."""
        return self.rows(owner, maker) if self.shape.comes else self.rows(maker, owner)

    def fresh(self, seed: int) -> None:
        """Draw the input anew."""
        raise NotImplementedError

    def input(self, shift: int) -> Tensor:
        """Return what this rank has for the rank so far behind it."""
        raise NotImplementedError

    def target(self, shift: int, own: Tensor | None) -> Tensor | None:
        """Return where results of a share are to lie; `own`: where this rank's go."""
        if own is not None:
            return own
        many = self.results(self.rank, (self.rank + shift) % self.ranks)
        return torch.empty(many, self.wide_back, device=self.device, dtype=self.dtype)

    def begin(self) -> None:
        """Begin a call."""

    def do(self, shift: int, rows: slice, come: Tensor, out: Tensor | None) -> None:
        """Compute rows of a share, of what has come, into `out`."""
        raise NotImplementedError

    def finish(self, back: Tensor | None) -> Tensor:
        """Return the result; `back`: what ranks made for this one, in their order."""
        raise NotImplementedError

    def plain(self, dist: Any, group: Any) -> Tensor:
        """Do the call by one collective after the other."""
        raise NotImplementedError

    def by_torch(self, group_name: str) -> Callable[[], Any] | None:
        """Return the call by a fused operator of torch, where it has one."""
        return None
