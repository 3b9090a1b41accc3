"""What has changed from one version to the next: elements by place, with new values.

In: a rank's parts as they were and as they are. Out: one run of bytes, which peers on
other hosts read in place of all parts. It is cut into blocks of 65,536 elements, so who
wants a part of a part reads little more than that. Values are absolute: what is written
twice is as if written once.

    starts      8 bytes for each block, and once more: how many changes lie before it
    positions   2 bytes for each change: where in its block
    values      those of a part from a multiple of 8 on, each as wide as an element
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.errors import TransferError
from stretto.program.collectives import storage
from stretto.weights.boxes import Box, volume, whole
from stretto.weights.manifest import Manifest

__all__ = [
    "BLOCK", "BlockMap", "BoxTarget", "Found", "NewElements", "Put", "found_at",
    "packed",
]  # fmt: skip

Found = tuple[NDArray[np.int64], NDArray[np.uint8], NDArray[np.uint8]]
"""Of a part: how many changes are in each block, their positions, their values."""
Fetch = Callable[[int, int], NDArray[np.uint8]]
"""Reads bytes of what a peer has packed, from one place to another."""
Put = Callable[[Any, NDArray[np.int64], Any], None]
"""Writes elements, as bits, at their places in an array, counted by rows."""
BLOCK = 1 << 16
_MOST_RUNS = 256


class BlockMap:
    """How the parts of a manifest lie in blocks: the same for all who have read it."""

    def __init__(self, manifest: Manifest) -> None:
        self.parts = manifest.held
        self.sizes = np.array([volume(held.box) for held in self.parts], np.int64)
        self.items = np.array([storage(h.dtype).itemsize for h in self.parts])
        self.firsts = np.concatenate(([0], np.cumsum(-(-self.sizes // BLOCK))))
        """The first block of each part; at the end, how many there are."""

    @property
    def head(self) -> int:
        """Return how many bytes the starts take."""
        return 8 * int(self.firsts[-1] + 1)

    def values(self, starts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return where the values of each part begin; at the end, where all end."""
        widths = np.diff(starts[self.firsts]) * self.items
        begin = self.head + -(-2 * int(starts[-1]) // 8) * 8
        return begin + np.concatenate(([0], np.cumsum(-(-widths // 8) * 8)))


def found_at(places: NDArray[np.int64], bits: NDArray[Any], size: int) -> Found:
    """Return what has changed, of places in a part of so many elements."""
    counts = np.bincount(places // BLOCK, minlength=-(-size // BLOCK))
    low = (places % BLOCK).astype(np.uint16)
    return counts, low.view(np.uint8), bits.view(np.uint8)


def packed(blocks: BlockMap, found: Sequence[Found]) -> NDArray[np.uint8]:
    """Return changes of all parts as bytes."""
    counts = np.concatenate([of_part[0] for of_part in found])
    starts = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
    values = blocks.values(starts)
    made = np.zeros(int(values[-1]), np.uint8)
    made[: blocks.head] = starts.view(np.uint8)
    begin = blocks.head
    for (_, low, bits), at in zip(found, values, strict=False):
        made[begin : begin + len(low)] = low
        made[at : at + len(bits)] = bits
        begin += len(low)
    return made


class BoxTarget:
    """Where a box of a part goes: an array of the box's shape."""

    def __init__(self, part: int, held: Box, box: Box, into: Any) -> None:
        self.part, self._into = part, into
        self._extent = tuple(stop - start for start, stop in held) or (1,)
        box = tuple((a - x, b - x) for (a, b), (x, _) in zip(box, held, strict=True))
        self._box = box or ((0, 1),)
        row = math.prod(self._extent[1:])
        self.span = self._box[0][0] * row, self._box[0][1] * row
        """The elements of the part among which all of the box are."""
        self._has_rows = self._box[1:] == whole(self._extent[1:])

    def write(self, places: NDArray[np.int64], bits: Any, put: Put) -> None:
        """Write new elements, as bits, those that are in the box."""
        kept = (places >= self.span[0]) & (places < self.span[1])
        places, bits = places[kept], bits[kept]
        if self._has_rows:
            put(self._into, places - self.span[0], bits)
            return
        axes = np.unravel_index(places, self._extent)
        inside = np.ones(len(places), bool)
        for at, (start, stop) in zip(axes, self._box, strict=True):
            inside &= (at >= start) & (at < stop)
        index = [at[inside] - a for at, (a, _) in zip(axes, self._box, strict=True)]
        shape = [stop - start for start, stop in self._box]
        put(self._into, np.ravel_multi_index(index, shape), bits[inside])


_ByPart = dict[int, list[BoxTarget]]


class NewElements:
    """What a peer has packed, as far as it is wanted here."""

    def __init__(self, blocks: BlockMap, nbytes: int, fetch: Fetch, put: Put) -> None:
        """Read where all lies; TransferError: that makes no sense."""
        self._blocks, self._fetch, self._put = blocks, fetch, put
        if nbytes < blocks.head:
            raise TransferError(f"changes of {nbytes} bytes; their head is larger")
        self._starts = fetch(0, blocks.head).view(np.int64)
        grows = self._starts[0] == 0 and (np.diff(self._starts) >= 0).all()
        if not grows or self._starts[-1] > nbytes:
            raise TransferError("changes that do not begin one after another")
        self._values = blocks.values(self._starts)
        if self._values[-1] != nbytes:
            raise TransferError(f"changes of {nbytes} bytes, and {self._values[-1]}")

    def write(self, wanted: Sequence[BoxTarget]) -> int:
        """Write into all targets what has changed there; return the bytes read."""
        nbytes = self._blocks.head
        by_part: _ByPart = {}
        for target in wanted:
            by_part.setdefault(target.part, []).append(target)
        for first, after in self._runs(by_part):
            nbytes += self._write(first, after, by_part)
        return nbytes

    def _runs(self, by_part: _ByPart) -> Iterator[tuple[int, int]]:
        """Yield blocks from one to another, as few runs as can be."""
        spans = []
        for part, targets in sorted(by_part.items()):
            begin = int(self._blocks.firsts[part])
            low = min(target.span[0] for target in targets)
            high = max(target.span[1] for target in targets)
            spans.append((begin + low // BLOCK, begin + -(-high // BLOCK)))
        runs: list[tuple[int, int]] = []
        for low, high in spans:
            if runs and low <= runs[-1][1]:
                runs[-1] = runs[-1][0], max(high, runs[-1][1])
            else:
                runs.append((low, high))
        if len(runs) > _MOST_RUNS:  # a request costs more than what lies between
            runs = [(runs[0][0], runs[-1][1])]
        yield from runs

    def _write(
        self, first: int, after: int, by_part: dict[int, list[BoxTarget]]
    ) -> int:
        """Write what lies in a run of blocks; return the bytes read."""
        blocks, starts = self._blocks, self._starts
        low, high = int(starts[first]), int(starts[after])
        if low == high:
            return 0
        head = blocks.head
        positions = self._fetch(head + 2 * low, head + 2 * high).view(np.uint16)
        of_block = np.repeat(
            np.arange(first, after), np.diff(starts[first : after + 1])
        )
        parts = range(
            int(np.searchsorted(blocks.firsts, first, "right")) - 1,
            int(np.searchsorted(blocks.firsts, after, "left")),
        )
        ends = [self._ends(part, first, after) for part in parts]
        begin, end = ends[0][2], ends[-1][3]
        values = self._fetch(begin, end)
        for part, (a, b, at, to) in zip(parts, ends, strict=True):
            if a == b or part not in by_part:
                continue
            some = slice(a - low, b - low)
            block = of_block[some] - int(blocks.firsts[part])
            places = block * BLOCK + positions[some]
            if (places >= blocks.sizes[part]).any():
                name = blocks.parts[part].name
                raise TransferError(f"{name!r}: a change outside of it")
            wide = values[at - begin : to - begin]
            bits = wide.view(f"u{blocks.items[part]}")
            for target in by_part[part]:
                target.write(places, bits, self._put)
        return 2 * (high - low) + end - begin

    def _ends(self, part: int, first: int, after: int) -> tuple[int, int, int, int]:
        """Return which changes of a part are in a run, and where their values lie."""
        blocks, starts = self._blocks, self._starts
        base = int(starts[blocks.firsts[part]])
        low = int(starts[max(first, blocks.firsts[part])])
        high = int(starts[min(after, blocks.firsts[part + 1])])
        item, begin = int(blocks.items[part]), int(self._values[part])
        return low, high, begin + (low - base) * item, begin + (high - base) * item
