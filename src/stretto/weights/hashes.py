"""Sums of what was sent and of what has arrived, compared over all ranks of a replica.

A sum of a tensor is that of its parts, however they are cut. So a replica whose ranks
hold all of it together compares with a source whose ranks do, without either having
seen the other's cuts. What several ranks hold alike must have the same sum.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

from stretto.errors import CallError
from stretto.weights.boxes import Box, are_apart, said, volume, whole
from stretto.weights.manifest import Manifest

__all__ = ["differences", "read_sums", "said_sums"]

_MASK = 0xFFFFFFFF
Side = Sequence[tuple[Manifest, Sequence[int]]]
"""Of each rank what it holds, and the sums in that order."""


def said_sums(sums: Sequence[int]) -> str:
    """Return sums as a text, for peers."""
    return np.array(sums, np.uint32).tobytes().hex()


def read_sums(text: str, manifest: Manifest) -> tuple[int, ...]:
    """Return sums from their text; CallError: they are not as many as parts."""
    try:
        found = np.frombuffer(bytes.fromhex(text), np.uint32)
    except ValueError:
        found = np.zeros(0, np.uint32)
    if len(found) != len(manifest.held):
        raise CallError(f"{len(found)} sums for {len(manifest.held)} parts")
    return tuple(int(one) for one in found)


def differences(theirs: Side, ours: Side) -> list[str]:
    """Return what is wrong.

    Not compared is what one side has only in part, or in parts that overlap.
    """
    there, faults = _parts("source", theirs)
    here, more = _parts("replica", ours)
    faults += more
    for name, parts in here.items():
        want, got = _total(there.get(name)), _total(parts)
        if None not in (want, got) and want != got:
            faults.append(f"{name!r}: sum {got:08x} here, {want:08x} at the source")
    return faults


_Parts = tuple[tuple[int, ...], dict[Box, int]]
"""A tensor's shape, and the sums of its parts."""


def _parts(who: str, side: Side) -> tuple[dict[str, _Parts], list[str]]:
    """Return each tensor's shape and parts, and whose copies of a part differ."""
    found: dict[str, _Parts] = {}
    first: dict[tuple[str, Box], int] = {}
    faults = []
    for rank, (manifest, sums) in enumerate(side):
        for held, one in zip(manifest.held, sums, strict=True):
            parts = found.setdefault(held.name, (held.shape, {}))[1]
            key = held.name, held.box
            if parts.setdefault(held.box, one) != one:
                faults.append(
                    f"{held.name!r} {said(held.box)}: {who} ranks {first[key]} and "
                    f"{rank} hold different values"
                )
            first.setdefault(key, rank)
    return found, faults


def _total(found: _Parts | None) -> int | None:
    """Return the sum of a whole tensor; None: the parts are not all of it, once."""
    if found is None or not _are_all(found[0], tuple(found[1])):
        return None
    return sum(found[1].values()) & _MASK


@functools.lru_cache(maxsize=4096)
def _are_all(shape: tuple[int, ...], boxes: tuple[Box, ...]) -> bool:
    total = sum(map(volume, boxes))
    return total == volume(whole(shape)) and are_apart(boxes)
