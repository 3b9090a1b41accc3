"""Numbers and literals of texts that anybody may have written: as we print, or refused.

Python's own `int` reads `005`, `+5`, `1_000` and the digits of every script, and its
literals as much: two texts of one meaning. And it reads numbers of any length.
"""

from __future__ import annotations

import ast
import re

WHOLE = r"(?:0|[1-9][0-9]{0,8})"
"""A whole number as it is printed, below 10^9: nothing here is counted any further."""
_PLAIN = re.compile(WHOLE)
_LONGEST = 1 << 20
"""Characters of a literal: pairs of ranks are the longest that there are."""


def whole(text: str) -> int:
    """Return a whole number from 0 to 10^9 - 1; ValueError where it is none.

    >>> whole("12")
    12
    """
    if _PLAIN.fullmatch(text) is None:
        raise ValueError(f"got {text[:40]!r}, want a whole number as 0 or 12, to 10^9")
    return int(text)


def literal(text: str) -> object:
    """Return the value of a literal that is spelled as it is printed, or ValueError.

    >>> literal("((0,1),(1,0))")
    ((0, 1), (1, 0))
    """
    try:
        value: object = ast.literal_eval(text) if len(text) <= _LONGEST else None
        if spelled(value) == text:
            return value
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        pass
    raise ValueError(f"{text[:40]!r} is no literal as it is printed")


def spelled(value: object) -> str:
    """Return a parameter's value as texts have it: one word."""
    return repr(value).replace(" ", "")
