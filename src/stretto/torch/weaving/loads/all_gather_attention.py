"""Attention over keys and values of everybody."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from stretto.errors import CallError
from stretto.torch.weaving.loads._load import WovenLoad

__all__ = ["OFFER", "AllGatherAttention"]


class AllGatherAttention(WovenLoad):
    """Own queries over everybody's keys and values: context parallel, no mask."""

    name = "all_gather_attention"
    _HEAD = 128

    def draw(self) -> None:
        """Make room; `width` is that of all heads of 128."""
        head = self._HEAD if self.device.type == "cuda" else 16
        if self.width % head:
            raise CallError(f"{self.name}: width {self.width}; want heads of {head}")
        self._part, self.heads, self.head = (
            self.tokens // self.ranks, self.width // head, head
        )  # fmt: skip
        self.wide_in = 2 * self.heads * head
        self.kv = torch.empty(
            self._part, self.wide_in, device=self.device, dtype=self.dtype
        )
        self.q = self.kv.new_empty(self._part, self.heads * head)
        self.whole = self.kv.new_empty(self._part * self.ranks, self.wide_in)
        self._partial: list[tuple[Tensor, Tensor]] = []

    def rows(self, source: int, target: int) -> int:
        """Return how many rows one rank has for another."""
        return self._part

    def fresh(self, seed: int) -> None:
        """Draw the input anew."""
        self.kv.copy_(self.like(self.kv, seed * 64 + self.rank))
        self.kv.mul_(self.wide_in**0.5)
        self.q.copy_(self.like(self.q, seed * 64 + 32 + self.rank))
        self.q.mul_(self.width**0.5)

    def input(self, shift: int) -> Tensor:
        """Return what this rank has for another."""
        return self.kv

    def target(self, shift: int, own: Tensor | None) -> Tensor | None:
        """Return where results of a share are to lie."""
        return None

    def begin(self) -> None:
        """Begin a call."""
        self._partial = []

    def do(self, shift: int, rows: slice, come: Tensor, out: Tensor | None) -> None:
        """Compute rows of a share."""
        self._partial.append(self._attend(come))

    def finish(self, back: Tensor | None) -> Tensor:
        """Return the result."""
        total, log = self._partial[0]
        for one, other in self._partial[1:]:
            total = torch.lerp(total, one, torch.sigmoid(other - log).to(self.dtype))
            log = torch.logaddexp(log, other)
        return self._flat(total)

    def plain(self, dist: Any, group: Any) -> Tensor:
        """Do the call by one collective after the other."""
        dist.all_gather_into_tensor(self.whole, self.kv, group=group)
        return self._flat(self._attend(self.whole)[0])

    def _attend(self, come: Tensor) -> tuple[Tensor, Tensor]:
        """Return the queries' part with these keys, and the logarithms of its sums."""
        q = self.q.view(1, -1, self.heads, self.head).transpose(1, 2)
        k, v = (
            one.view(1, -1, self.heads, self.head).transpose(1, 2)
            for one in come.split(self.heads * self.head, 1)
        )
        aten = torch.ops.aten
        if self.device.type == "cuda":
            out, log, *_ = aten._scaled_dot_product_cudnn_attention(q, k, v, None, True)
        else:
            out, log = aten._scaled_dot_product_flash_attention_for_cpu(q, k, v)
        return out, log.view(*out.shape[:3], 1)

    def _flat(self, out: Tensor) -> Tensor:
        return out.transpose(1, 2).reshape(self._part, -1)


OFFER = AllGatherAttention
