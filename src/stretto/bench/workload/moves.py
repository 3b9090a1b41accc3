"""One case of a comparison: what is moved, in how many pieces, and what must be there.

The bytes of both sides follow from the case alone, so each side knows what is right.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from stretto.bench.contender import PreparedCall
from stretto.errors import UnknownNameError

WHATS = ("put", "get", "blocks", "notify")


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveCase:
    """A put or a get of bytes, a put of shuffled blocks, or a notification's trip."""

    what: str
    path: str
    nbytes: int = 0
    """Of each piece."""
    count: int = 1
    idle_us: float = 0.0
    """How long both sides idle before each; 0: they come one after another."""
    scale: ClassVar[int] = 1
    in_place: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Refuse what nobody measures."""
        if self.what not in WHATS:
            raise UnknownNameError.among("case", self.what, WHATS)

    @property
    def total(self) -> int:
        """Return how many bytes are moved."""
        return self.nbytes * self.count

    @property
    def label(self) -> str:
        """Return its name in a table."""
        idle = f", after {self.idle_us / 1e3:g} ms" if self.idle_us else ""
        if self.what == "notify":
            return f"notification, there and back{idle}"
        pieces = f"{self.count} x " if self.count > 1 else ""
        return f"{self.what} {pieces}{self.nbytes}{idle}"

    @property
    def order(self) -> NDArray[np.int64]:
        """Return where each block goes."""
        return np.random.default_rng(self.count).permutation(self.count)

    def source(self) -> NDArray[np.uint8]:
        """Return the bytes of the side that has them."""
        seed = zlib.crc32(repr(self).encode())
        rng = np.random.default_rng(seed)
        return rng.integers(0, 256, max(1, self.total), dtype=np.uint8)

    def result(self) -> NDArray[np.uint8]:
        """Return what must lie at the other side afterwards."""
        if self.count == 1:
            return self.source()
        blocks = self.source().reshape(self.count, self.nbytes)
        made = np.empty_like(blocks)
        made[self.order] = blocks
        return made.reshape(-1)

    def has_source(self, role: str) -> bool:
        """Return whether a side is the one that has the bytes."""
        return (role == "there") == (self.what == "get")

    def fill(self, prepared: PreparedCall, rank: int, seed: int) -> None:
        """Store its bytes where they are taken from, where somebody will look."""
        if prepared.fill is not None:
            prepared.fill()

    def wrong(self, prepared: PreparedCall, rank: int, seed: int) -> str:
        """Return what is wrong with what has arrived; nothing when all is right."""
        return prepared.wrong() if prepared.wrong is not None else ""
