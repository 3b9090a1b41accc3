"""What a caller passes beside the ranks: made plain data before anybody reads it.

A program prints its parameters and is read more than once. So an iterator, which can
be read once, becomes a tuple; what cannot be printed and read back is refused.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable

from stretto.errors import CallError

_MOST = 1 << 20
"""Values that one parameter may hold."""


def settled(key: str, value: object) -> object:
    """Return a parameter as plain data: numbers, strings, tuples of them."""
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, str):
        if value.split() != [value] or not value.isprintable():
            raise CallError(f"{key}={value!r}: want a string without blanks")
        return value
    if isinstance(value, Iterable):
        held = list(itertools.islice(value, _MOST + 1))
        if len(held) > _MOST:
            raise CallError(f"{key}: more than {_MOST:,} values; want fewer")
        if isinstance(value, set | frozenset):
            held.sort()
        return tuple(settled(key, one) for one in held)
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise CallError(
            f"{key}={value!r}: want numbers, strings, or tuples of them: a program "
            f"prints its parameters"
        ) from None
