"""Tokens to their experts and back."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from stretto.torch.weaving.loads._load import WovenLoad

__all__ = ["OFFER", "MoeDispatchCombine"]


class MoeDispatchCombine(WovenLoad):
    """Tokens to the ranks of their experts, two matmuls there, back and summed.

    Rank 0's experts are asked for `SKEW` times as often as others. Rows are there in
    the order of experts, as whoever routes has them, in both ways of the call.
    """

    name = "moe_dispatch_combine"
    SKEW = 2.0
    _EXPERTS, _TOP, _HIDDEN = 2, 2, 4096

    def draw(self) -> None:
        """Draw who goes where, the same on all ranks, and make the experts."""
        hidden = self._HIDDEN if self.device.type == "cuda" else 64
        self.wide_in = self.wide_back = hidden
        part, per = self.tokens // self.ranks, self._EXPERTS
        gen = torch.Generator().manual_seed(self.tokens)
        odds = torch.ones(self.ranks * per)
        odds[:per] = self.SKEW
        self._ids = [
            torch.multinomial(odds.expand(part, -1), self._TOP, generator=gen)
            for _ in range(self.ranks)
        ]
        counts = [torch.bincount(i.flatten(), minlength=len(odds)) for i in self._ids]
        self._counts = [[int(c) for c in one] for one in counts]
        self.w_up = [self.drawn(hidden, self.width, 2 + e) for e in self._mine]
        self.w_down = [self.drawn(self.width, hidden, 99 + e) for e in self._mine]
        mine = self._ids[self.rank].flatten()
        place = torch.empty_like(mine)
        place[mine.argsort(stable=True)] = torch.arange(len(mine))
        self._place = place.to(self.device)
        self.weights = torch.rand(part, self._TOP, generator=gen).to(self.device)
        self._from = [self.rows(q, self.rank) for q in range(self.ranks)]
        self._to = [self.rows(self.rank, q) for q in range(self.ranks)]
        self.x = self.w_up[0].new_empty(sum(self._to), hidden)
        self._come = self.x.new_empty(sum(self._from), hidden)
        self._made, self._back = (torch.empty_like(o) for o in (self._come, self.x))

    @property
    def _mine(self) -> range:
        return range(self.rank * self._EXPERTS, (self.rank + 1) * self._EXPERTS)

    def rows(self, source: int, target: int) -> int:
        """Return how many rows one rank has for another."""
        first = target * self._EXPERTS
        return sum(self._counts[source][first : first + self._EXPERTS])

    def fresh(self, seed: int) -> None:
        """Draw the input anew."""
        self.x.copy_(self.like(self.x, seed * 64 + self.rank))
        self.x.mul_(self.wide_in**0.5)

    def input(self, shift: int) -> Tensor:
        """Return what this rank has for another."""
        return self.x.split(self._to)[(self.rank + shift) % self.ranks]

    def do(self, shift: int, rows: slice, come: Tensor, out: Tensor | None) -> None:
        """Compute rows of a share."""
        assert out is not None
        counts = self._counts[(self.rank + shift) % self.ranks]
        begin = 0
        for i, e in enumerate(self._mine):
            end = begin + counts[e]
            low, high = max(begin, rows.start), min(end, rows.stop)
            begin = end
            if low >= high:
                continue
            cut = slice(low - rows.start, high - rows.start)
            up = torch.nn.functional.silu(come[cut] @ self.w_up[i])
            torch.mm(up, self.w_down[i], out=out[cut])

    def finish(self, back: Tensor | None) -> Tensor:
        """Return the result."""
        assert back is not None
        rows = back[self._place].view(*self.weights.shape, -1)
        return (rows * self.weights.to(rows.dtype).unsqueeze(-1)).sum(1)

    def plain(self, dist: Any, group: Any) -> Tensor:
        """Do the call by one collective after the other."""
        dist.all_to_all_single(self._come, self.x, self._from, self._to, group=group)
        pairs = zip(
            self._come.split(self._from), self._made.split(self._from), strict=True
        )
        for q, (come, made) in enumerate(pairs):
            shift = (q - self.rank) % self.ranks
            self.do(shift, slice(0, come.shape[0]), come, made)
        dist.all_to_all_single(
            self._back, self._made, self._to, self._from, group=group
        )
        return self.finish(self._back)


OFFER = MoeDispatchCombine
