"""Variables of the environment that go to others, or stand in names: texts in UTF-8.

Python has what is no UTF-8 there as halves of surrogate pairs, which no frame carries:
who hears of it far from here could not say which variable it was.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from stretto.errors import LaunchEnvironmentError

_MOST_SPELT, _LONGEST = 60, 19


def text_of(
    variable: str, default: str = "", environment: Mapping[str, str] | None = None
) -> str:
    """Return a variable's text, or the default where it is not set, or empty."""
    env = os.environ if environment is None else environment
    given = env.get(variable) or default
    try:
        given.encode()
    except UnicodeEncodeError:
        raise LaunchEnvironmentError(
            f"{variable}={given[:_MOST_SPELT]!r} is no UTF-8; want a text that is"
        ) from None
    return given


def number_of(variable: str, default: int, least: int = 0) -> int:
    """Return a variable's whole number, or the default where it says nothing."""
    text = text_of(variable, str(default))
    is_number = text.isascii() and text.isdigit() and len(text) < _LONGEST
    found = int(text) if is_number else -1
    if found < least:
        raise LaunchEnvironmentError(
            f"{variable}={text[:_MOST_SPELT]!r}; want a whole number, at least {least}"
        )
    return found
