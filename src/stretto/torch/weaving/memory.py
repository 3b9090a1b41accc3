"""What ranks share for woven calls, and where in it each share lies."""

from __future__ import annotations

import torch
from torch import Tensor

from stretto.runtime.calls import Communicator
from stretto.torch.weaving.loads import WovenLoad

__all__ = ["WovenMemory"]


class WovenMemory:
    """What ranks share: their stored input, what comes, what comes back."""

    def __init__(self, load: WovenLoad, comm: Communicator) -> None:
        """Share it (collective)."""
        self._load = load
        self._begins = [self._laid_out(q) for q in range(load.ranks)]
        most = max(begins["end", 0] for begins in self._begins)
        size = torch.empty(0, dtype=load.dtype).element_size()
        on_gpu = load.device.type == "cuda"
        self.array = comm.empty(
            max(16, most * size), "uint8", **({"device": "cuda"} if on_gpu else {})
        )
        everybodys = comm.peers(self.array)
        self._flat = [
            torch.from_dlpack(one).view(load.dtype)[:most] for one in everybodys
        ]

    def _laid_out(self, rank: int) -> dict[tuple[str, int], int]:
        """Return at which number a rank's shares begin, in the order of ranks."""
        found: dict[tuple[str, int], int] = {}
        at = 0
        for kind in ("store", "in", "back"):
            for q in range(self._load.ranks):
                found[kind, q] = at
                at += self._rows(kind, rank, q) * self._wide(kind)
            at = -(-at // 128) * 128
        found["end", 0] = at
        return found

    def _wide(self, kind: str) -> int:
        return self._load.wide_back if kind == "back" else self._load.wide_in

    def _rows(self, kind: str, rank: int, q: int) -> int:
        load = self._load
        if kind == "back":
            return load.results(q, rank) if load.shape.goes else 0
        if not load.shape.comes or q == rank:
            return 0
        return load.rows(rank, q) if kind == "store" else load.rows(q, rank)

    def share(self, kind: str, rank: int, q: int) -> Tensor:
        """Return what a rank holds of another, or for it: stored, come, come back."""
        begin, rows, wide = (
            self._begins[rank][kind, q], self._rows(kind, rank, q), self._wide(kind)
        )  # fmt: skip
        return self._flat[rank][begin : begin + rows * wide].view(rows, wide)

    def whole_back(self) -> Tensor | None:
        """Return everything that came back, in the order of ranks."""
        load, me = self._load, self._load.rank
        if not load.shape.goes:
            return None
        rows = sum(self._rows("back", me, q) for q in range(load.ranks))
        begin, wide = self._begins[me]["back", 0], load.wide_back
        return self._flat[me][begin : begin + rows * wide].view(rows, wide)

    def poison(self) -> None:
        """Spoil what lies there, so that whoever reads too early is found."""
        self._flat[self._load.rank].fill_(float("nan"))
