"""Sizes as people write them: `8`, `4K`, `1M`, `1G`, and ranges `1K:1G`, `1K:1G:4`."""

from __future__ import annotations

import re

from stretto.errors import CallError

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SIZE = re.compile(r"([0-9]{1,18})([KMGT]?)(?:I?B)?\Z", re.ASCII)
_FACTOR = re.compile(r"[0-9]{1,18}")
_MOST = 1 << 50
"""Bytes of a size: no machine has a pebibyte for a call."""


def parse_size(text: str) -> int:
    """Return the bytes that a size says; K, M and G are binary.

    >>> parse_size("4K")
    4096
    """
    match = _SIZE.match(text.strip().upper())
    if match is None:
        raise CallError(
            f"size {text[:40]!r}; want a number, or one with K, M or G after it"
        )
    nbytes = int(match[1]) * _UNITS[match[2]]
    if nbytes > _MOST:
        raise CallError(f"size {text[:40]!r}; want at most {_MOST >> 40}T")
    return nbytes


def parse_sizes(text: str) -> list[int]:
    """Return the sizes of a list: `8`, `1K:1G` (powers of two), `1K:1G:4`, commas.

    >>> parse_sizes("1K:8K")
    [1024, 2048, 4096, 8192]
    """
    found: list[int] = []
    for part in text.split(","):
        first, *rest = part.split(":")
        if not rest:
            found.append(parse_size(first))
            continue
        if len(rest) > 2 or (len(rest) == 2 and not _FACTOR.fullmatch(rest[1].strip())):
            raise CallError(f"sizes {part[:80]!r}; want FROM:TO or FROM:TO:FACTOR")
        size, stop = parse_size(first), parse_size(rest[0])
        factor = int(rest[1]) if len(rest) == 2 else 2
        if factor < 2 or not 0 < size <= stop:
            raise CallError(
                f"sizes {part[:80]!r}: from {size} to {stop} by {factor}; want a "
                f"rising range from at least 1, and a factor of at least 2"
            )
        while size <= stop:
            found.append(size)
            size *= factor
    return found


def spell_size(nbytes: int) -> str:
    """Return a size the short way.

    >>> spell_size(4096), spell_size(1000)
    ('4K', '1000')
    """
    for unit in ("G", "M", "K"):
        if nbytes >= _UNITS[unit] and nbytes % _UNITS[unit] == 0:
            return f"{nbytes // _UNITS[unit]}{unit}"
    return str(nbytes)
