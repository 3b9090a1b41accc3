"""What lies where in the pinned memory that a rank has for ranks on other hosts.

    far      for every set of flags: what such ranks write, at the offsets of control
             memory (abi.py): the roll, and flags
    side     three words that every signal of the carrier writes, and nobody reads
    inbox    for every set: staging, two halves, into which such ranks put
    rings    for every set: requests of kernels (ring.cuh)
    mirrors  for every set and far rank: what is to be put into that rank's staging

Far, side and inbox are the *window*: at the same offset on every rank, and all that a
carrier lets others write.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stretto.executors.cuda.words import (
    CONTROL,
    HOST_REQUEST,
    HOST_RING_BEGIN,
    HOST_SLOTS,
)

RING_BYTES = HOST_RING_BEGIN + HOST_SLOTS * HOST_REQUEST.itemsize
_PAGE = 4096
_SIDE_BYTES = 64


def _pages(nbytes: int) -> int:
    return -(-nbytes // _PAGE) * _PAGE


@dataclass(frozen=True, slots=True, kw_only=True)
class FarLayout:
    """Offsets of everything in one rank's pinned memory."""

    sets: int
    """Sets of flags."""
    half: int
    """Bytes of one half of a set's staging."""
    far_ranks: Sequence[int]

    @property
    def far_bytes(self) -> int:
        """Return the bytes of a set's roll and flags."""
        return _pages(CONTROL["sums"])

    def far(self, nth: int) -> int:
        """Return where a set's roll and flags lie."""
        return nth * self.far_bytes

    @property
    def side(self) -> int:
        """Return where signals leave their side words."""
        return self.far(self.sets)

    @property
    def words(self) -> tuple[int, int]:
        """Return the part of the window in which words may be raised."""
        return 0, self.side + _SIDE_BYTES

    def inbox(self, nth: int) -> int:
        """Return where a set's staging for far ranks lies."""
        return _pages(self.side + _SIDE_BYTES) + nth * 2 * self.half

    @property
    def puts(self) -> tuple[int, int]:
        """Return the part of the window in which data may land."""
        return self.inbox(0), self.inbox(self.sets)

    def ring(self, nth: int) -> int:
        """Return where a set's requests lie."""
        return _pages(self.inbox(self.sets)) + nth * _pages(RING_BYTES)

    def mirror(self, nth: int, rank: int) -> int:
        """Return where the staging of a far rank is mirrored."""
        place = nth * len(self.far_ranks) + list(self.far_ranks).index(rank)
        return self.ring(self.sets) + place * 2 * self.half

    @property
    def mirrors(self) -> tuple[int, int]:
        """Return the part of all memory from which is put."""
        return self.ring(self.sets), self.nbytes

    @property
    def nbytes(self) -> int:
        """Return the size of it all."""
        places = self.sets * len(self.far_ranks)
        return self.ring(self.sets) + places * 2 * self.half
