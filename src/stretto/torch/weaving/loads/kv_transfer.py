"""Layers on one rank, their keys and values to another."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from stretto.errors import CallError
from stretto.torch.weaving.loads._load import WovenLoad

__all__ = ["OFFER", "KvTransfer"]


class KvTransfer(WovenLoad):
    """Rank 0 computes 16 layers, and rank 1 is to have their keys and values."""

    name = "kv_transfer"
    _HIDDEN, _KV = 4096, 8192

    def draw(self) -> None:
        """Make one layer, of which all are made."""
        if self.ranks != 2:
            raise CallError(f"kv_transfer: {self.ranks} ranks; want 2")
        large = self.device.type == "cuda"
        hidden, self.wide_back = (self._HIDDEN, self._KV) if large else (64, 64)
        self.layers = self.shape.parts
        self.up, self.down = (
            self.drawn(hidden, self.width, 1), self.drawn(self.width, hidden, 2)
        )  # fmt: skip
        self.wkv = self.drawn(hidden, self.wide_back, 3)
        self.x = self.up.new_empty(self.tokens, hidden)
        self._h = self.x
        rows = self.layers * self.tokens
        self._kv = self.x.new_empty(rows, self.wide_back)

    def rows(self, source: int, target: int) -> int:
        """Return how many rows one rank has for another."""
        return self.layers * self.tokens if (source, target) == (0, 1) else 0

    def fresh(self, seed: int) -> None:
        """Draw the input anew."""
        self.x.copy_(self.like(self.x, seed * 64))
        self.x.mul_(self.x.shape[1] ** 0.5)

    def input(self, shift: int) -> Tensor:
        """Return what this rank has for another."""
        return self.x.new_empty(self.rows(self.rank, (self.rank + shift) % 2), 0)

    def begin(self) -> None:
        """Begin a call."""
        self._h = self.x

    def do(self, shift: int, rows: slice, come: Tensor, out: Tensor | None) -> None:
        """Compute rows of a share."""
        if out is None or not out.shape[0]:
            return
        for one in out.split(self.tokens):
            torch.mm(self._h, self.wkv, out=one)
            up = torch.nn.functional.silu(self._h @ self.up)
            self._h = torch.addmm(self._h, up, self.down)

    def finish(self, back: Tensor | None) -> Tensor:
        """Return the result."""
        assert back is not None
        return back

    def plain(self, dist: Any, group: Any) -> Tensor:
        """Do the call by one collective after the other."""
        self.begin()
        if self.rank == 0:
            for one in self._kv.split(self.tokens):
                self.do(1, slice(0, self.tokens), one, one)
                dist.send(one, 1, group=group)
            return self._kv[:0]
        for one in self._kv.split(self.tokens):
            dist.recv(one, 0, group=group)
        return self._kv


OFFER = KvTransfer
