"""What a chunk holds: contributions, counted.

A contribution is (rank, chunk of that rank's input). Contents are terms
`(shift, ranks, times)`: every rank of the bit set contributes its input chunk
`position + shift` so many times. A set would accept a step done twice; a count
does not.
"""

from __future__ import annotations

from collections import Counter
from typing import TypeAlias

Contents: TypeAlias = tuple[tuple[int, int, int], ...]


def add(a: Contents, b: Contents) -> Contents:
    """Return both contributions together."""
    if len(a) == len(b) == 1:
        (shift, ranks, times), (shift_b, ranks_b, times_b) = a[0], b[0]
        if shift == shift_b and times == times_b == 1 and not ranks & ranks_b:
            return ((shift, ranks | ranks_b, 1),)
    counts: Counter[tuple[int, int]] = Counter()
    for shift, ranks, times in a + b:
        for rank in members(ranks):
            counts[shift, rank] += times
    grouped: dict[tuple[int, int], int] = {}
    for (shift, rank), times in counts.items():
        key = (shift, times)
        grouped[key] = grouped.get(key, 0) | 1 << rank
    return tuple(sorted((s, ranks, t) for (s, t), ranks in grouped.items()))


def moved(contents: Contents, by: int) -> Contents:
    """Return the same contents seen from a position `by` chunks further on."""
    if not by:
        return contents
    return tuple((shift - by, ranks, times) for shift, ranks, times in contents)


def members(ranks: int) -> list[int]:
    """Return the ranks of a bit set."""
    return [r for r in range(ranks.bit_length()) if ranks >> r & 1]


def describe(contents: Contents, position: int, shift: int, ranks: int) -> str:
    """Say what a chunk holds, what it needs (`shift`, `ranks`), and the difference."""
    needs = members(ranks)
    chunk = position + shift
    held: list[int] = []
    strange: list[str] = []
    for s, who, times in contents:
        if s == shift:
            held += [r for r in members(who) for _ in range(times)]
        else:
            strange.append(f"input[{position + s}] of ranks {members(who)}")
    held.sort()
    missing = sorted(set(needs) - set(held))
    extra = list((Counter(held) - Counter(needs)).elements())
    also = f" and {', '.join(strange)}" if strange else ""
    return (
        f"holds input[{chunk}] of ranks {held}{also}, needs {needs} once each "
        f"(missing {missing}, extra {extra}{', wrong chunks' if strange else ''})"
    )
