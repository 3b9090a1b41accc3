"""Who reads what from whom, and the proof that it is all, once, before a byte moves.

In: what a rank here wants, and the manifests of all ranks there. Out: reads. Never: a
destination of which an element is written twice, by something else, or not at all.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Sequence
from dataclasses import dataclass

from stretto.errors import LayoutError, PlanError
from stretto.program.collectives import storage
from stretto.weights.boxes import (
    Box,
    are_apart,
    common,
    cut,
    rows,
    said,
    volume,
    whole,
    within,
)
from stretto.weights.manifest import Manifest
from stretto.weights.names import Spec, Tile

__all__ = ["Read", "There", "Wanted", "cover", "prove_cover"]

_MOST_SAID = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A tensor that lies here: its shape and type, and where it comes from."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    spec: Spec


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """A box of one rank's part that is to become a box of a tensor here."""

    tile: Tile
    """All that comes into one place here."""
    rank: int
    group: int
    index: int
    """Its place in the group."""
    box: Box
    name: str
    at: Box


class There:
    """What all ranks of a source hold, by name."""

    def __init__(self, manifests: Sequence[Manifest]) -> None:
        self.manifests = tuple(manifests)
        self.holders: dict[str, list[tuple[int, int, int, Box]]] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.dtypes: dict[str, str] = {}
        faults = []
        for rank, manifest in enumerate(manifests):
            for g, group in enumerate(manifest.groups):
                for i, held in enumerate(group):
                    name, shape, dtype = held.name, held.shape, held.dtype
                    holders = self.holders.setdefault(name, [])
                    holders.append((rank, g, i, held.box))
                    known = self.shapes.setdefault(name, shape)
                    kind = self.dtypes.setdefault(name, dtype)
                    if (known, kind) != (shape, dtype):
                        faults.append(
                            f"{name!r}: source rank {holders[0][0]} says {kind} "
                            f"{known}, rank {rank} {dtype} {shape}"
                        )
        _raise(faults)

    def nearest(self, name: str) -> str:
        """Return a few names that are like one, for people."""
        close = difflib.get_close_matches(name, self.shapes, 3, 0.4)
        return ", ".join(map(repr, close or sorted(self.shapes)[:3])) or "none at all"


def _raise(faults: Sequence[str]) -> None:
    if faults:
        more = len(faults) - _MOST_SAID
        text = "\n  ".join(faults[:_MOST_SAID])
        rest = f"\n  and {more} more" if more > 0 else ""
        raise LayoutError(f"the weights do not fit:\n  {text}{rest}")


def cover(
    wanted: Sequence[Wanted], there: There, *, turn: int = 0, most: int = 1 << 62
) -> tuple[Read, ...]:
    """Return what to read, proved; LayoutError names all that does not fit.

    What several hold is read from one of them; who has another `turn`, from another.
    What is larger than `most` bytes is read in pieces, by its first axis.
    """
    faults: list[str] = []
    reads: list[Read] = []
    for one in wanted:
        size = max(1, most // storage(one.dtype).itemsize)
        for tile in _tiles(one, there, faults):
            reads += _from(one, tile, there, turn, size, faults)
    _raise(faults)
    prove_cover(wanted, reads, there)
    return tuple(reads)


def _tiles(one: Wanted, there: There, faults: list[str]) -> list[Tile]:
    """Return what a tensor consists of, when that is what it should be."""
    names = list(dict.fromkeys(one.spec.sources()))
    lacking = [n for n in names if n not in there.shapes]
    faults += [
        f"{one.name!r} here comes from {name!r}, which the source lacks; it has "
        f"{there.nearest(name)}"
        for name in lacking
    ]
    if lacking:
        return []
    try:
        shape, tiles = one.spec.tiles(there.shapes)
    except LayoutError as e:
        faults.append(f"{one.name!r} here: {e}")
        return []
    if shape != one.shape:
        missing = _missing(one, tiles)
        sources = ", ".join(f"{n!r} {there.shapes[n]}" for n in names)
        faults.append(
            f"{one.name!r} here has shape {one.shape}; the source gives {shape}, of "
            f"{sources:.300}{missing}"
        )
        return []
    other = sorted(n for n in names if there.dtypes[n] != one.dtype)
    faults += [
        f"{one.name!r} here is {one.dtype}, {name!r} at the source "
        f"{there.dtypes[name]}; want one type: publish(..., cast=...) makes it there"
        for name in other
    ]
    return [] if other else tiles


def _missing(one: Wanted, tiles: Sequence[Tile]) -> str:
    """Return which element of a tensor nothing is for, as far as that can be said."""
    if any(len(t.at) != len(one.shape) for t in tiles):
        return ""
    inside = [common(t.at, whole(one.shape)) for t in tiles]
    for part in cut(whole(one.shape), [b for b in inside if b]):
        if not any(b and within(part, b) for b in inside):
            return f"; nothing is for {said(part)}"
    return ""


def _from(
    one: Wanted, tile: Tile, there: There, turn: int, most: int, faults: list[str]
) -> list[Read]:
    """Return the reads of a tile, from whoever holds it, of so many elements."""
    holders = there.holders[tile.source]
    found, lacking = _dealt(tile.box, tuple(h[3] for h in holders), turn)
    for part in lacking:
        held = "; ".join(f"rank {h[0]} {said(h[3])}" for h in holders[:4])
        faults.append(
            f"{one.name!r} here needs {tile.source!r} {said(part)}, which no rank of "
            f"the source holds: {held}"
        )
    reads = []
    for nth, part in found:
        rank, group, index, _ = holders[nth]
        for box in rows(part, most):
            at = _place(box, tile.box, tile.at, tile.new_axes)
            reads.append(Read(tile=tile, rank=rank, group=group, index=index, box=box,
                              name=one.name, at=at))  # fmt: skip
    return reads


@functools.lru_cache(maxsize=4096)
def _dealt(
    box: Box, held: tuple[Box, ...], turn: int
) -> tuple[tuple[tuple[int, Box], ...], tuple[Box, ...]]:
    """Return the number of a holder for each part of a box, and what nobody holds."""
    full = [nth for nth, other in enumerate(held) if within(box, other)]
    if full:
        return ((full[turn % len(full)], box),), ()
    found, lacking = [], []
    for part in cut(box, held):
        having = [nth for nth, other in enumerate(held) if within(part, other)]
        if having:
            found.append((having[turn % len(having)], part))
        else:
            lacking.append(part)
    return tuple(found), tuple(lacking)


@functools.lru_cache(maxsize=4096)
def _place(part: Box, box: Box, at: Box, new_axes: tuple[int, ...]) -> Box:
    """Return where a part of a box goes, when the box goes there."""
    rest = iter(zip(part, box, strict=True))
    found = []
    for axis, (start, stop) in enumerate(at):
        if axis in new_axes:
            found.append((start, stop))
            continue
        (a, b), (begin, _) = next(rest)
        found.append((start + a - begin, start + b - begin))
    return tuple(found)


def prove_cover(wanted: Sequence[Wanted], reads: Sequence[Read], there: There) -> None:
    """Raise PlanError unless reads write every element once, from its own place.

    Nothing of the planner is used: of each read the corner, the extent and the place
    are compared with what the names say, and boxes are counted.
    """
    by_name: dict[str, list[Read]] = {one.name: [] for one in wanted}
    for read in reads:
        if read.name not in by_name:
            raise PlanError(f"{read.name!r} is written, and nobody wants it")
        by_name[read.name].append(read)
    for one in wanted:
        mine = by_name[one.name]
        if why := _inexact(one.shape, tuple(r.at for r in mine)):
            raise PlanError(f"{one.name!r}: {why}")
        _, tiles = one.spec.tiles(there.shapes)
        for read in mine:
            _prove_read(one, read, tiles, there)


@functools.lru_cache(maxsize=4096)
def _inexact(shape: tuple[int, ...], ats: tuple[Box, ...]) -> str:
    """Return why boxes are not a tensor, each element once; or nothing."""
    if not all(within(at, whole(shape)) for at in ats):
        return f"writes outside of shape {shape}"
    if not are_apart(ats):
        return "some elements are written twice"
    total, size = sum(map(volume, ats)), volume(whole(shape))
    return "" if total == size else f"writes {total} of {size} elements"


def _prove_read(one: Wanted, read: Read, tiles: Sequence[Tile], there: There) -> None:
    held = there.manifests[read.rank].groups[read.group][read.index]
    if not within(read.box, held.box):
        raise PlanError(f"{one.name!r}: rank {read.rank} does not hold {read.box}")
    for tile in tiles:
        if (
            tile.source == held.name
            and tile.new_axes == read.tile.new_axes
            and _is_moved_alike(read.box, read.at, tile.box, tile.at, tile.new_axes)
        ):
            return
    raise PlanError(f"{one.name!r}: {said(read.at)} is written from another place")


@functools.lru_cache(maxsize=4096)
def _is_moved_alike(
    box: Box, at: Box, whole_box: Box, whole_at: Box, new_axes: tuple[int, ...]
) -> bool:
    """Return whether a part of a tile goes where the tile puts it."""
    if not within(at, whole_at):
        return False
    kept = [i for i in range(len(at)) if i not in new_axes]
    shift = [at[i][0] - whole_at[i][0] for i in kept]
    sizes = [at[i][1] - at[i][0] for i in kept]
    there_by = [a - x for (a, _), (x, _) in zip(box, whole_box, strict=True)]
    return sizes == [b - a for a, b in box] and shift == there_by
