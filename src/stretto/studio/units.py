"""Sizes and times as people write them."""

from __future__ import annotations

_UNITS = ("", "K", "M", "G", "T", "P")
_TIMES = (("min", 6e7), ("s", 1e6), ("ms", 1e3))


def size_name(nbytes: float) -> str:
    """Return a number of bytes, binary: `1M`, `3.5K`."""
    power = 0
    while abs(nbytes) >= 1024 and power < len(_UNITS) - 1:
        nbytes, power = nbytes / 1024, power + 1
    return f"{nbytes:.4g}{_UNITS[power]}"


def time_name(us: float) -> str:
    """Return a time with the unit that suits it: `72.9 ms`."""
    for unit, size in _TIMES:
        if abs(us) >= size:
            return f"{us / size:.4g} {unit}"
    return f"{us:.4g} us"
