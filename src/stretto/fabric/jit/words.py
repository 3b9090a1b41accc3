"""Words of memory that Python and compiled code know by the same names.

A layout is declared once, as a class of `Words`. In Python a word is an index into an
array of 64-bit words, and in compiled code `.at` is how many bytes it lies behind the
first: Numba makes a constant of it, and of any other enumeration of numbers.
"""

from __future__ import annotations

import enum


class Words(enum.IntEnum):
    """Words of a piece of memory, by name; END, of most, lies behind the last."""

    @property
    def at(self) -> int:
        """How many bytes a word lies behind the first."""
        return 8 * self.value
