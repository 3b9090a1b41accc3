"""Rows of flows and links, as compiled code has them: `compiled.py`, `filling.py`.

F flows, H what they have; K links; Q those of the flows that are affected, L the links
that these are on, G these links by their numbers in L, for each of Q. R the links of
all routes, one route behind the other; P a part for each link: its flows in the order
of coming, and below them those that are affected, by their numbers in Q; W lists that
one settling works with; S single numbers.

V levels of links of L, T ends of flows, B and U the same memory read as whole numbers:
what is not negative has the order of its bits, and the least of whole numbers is found
many at a time. Behind them lies the least of every `BLOCK`, -1 where it must be found
anew, and one word more.

What is used together lies together. Numbers that index arrays are unsigned: of others
compiled code first asks each time whether they count from the end.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import from_dtype, types

from stretto.fabric.jit.atomics import compiled
from stretto.fabric.jit.handed import handing


def _row(**fields: str) -> Any:
    return np.dtype([(name, kind) for kind in fields for name in fields[kind].split()])


FLOW = _row(f8="left since weight most limit", i8="age first hops")
SHARE = _row(f8="rate share weight", i4="neck place")
LINK = _row(f8="capacity", u4="start many places mine touched mark", i4="slot spare")
# `stopped`: 1 when it is listed, 2 when it has got its rate.
MINE = _row(f8="new weight", u4="stopped flow hops", i4="neck")
ROOM = _row(f8="room count highest own free weights top least")
FRESH, GONE, TOUCH, ORDER, NEWER, LINKS, STOPS, READ, DUE, TURNS, OTHERS = range(11)
NUM_FRESH, NUM_ADMITTED, NUM_GONE, NUM_TOUCHED, NUM_DUE, EVENTS, USED, NUM_LIMITED = (
    range(8)
)

ITSELF = -1
NEAR = 1 + 1e-9
BLOCK = 32
ONE, ONE_BLOCK, SHIFT = np.uint64(1), np.uint64(BLOCK), np.uint64(5)
"""As what counts with indices: whole numbers of two kinds would make a fraction."""
_FLOATS, _WORDS = types.Array(types.float64, 1, "C"), types.Array(types.int64, 1, "C")
_SMALL, _TABLE = (types.Array(types.uint32, n, "C") for n in (1, 2))
MINES = types.Array(from_dtype(MINE), 1, "C")
FLOWS, _SHARES, _LINKS, _ROOMS = (
    types.Array(from_dtype(kind), 1, "C") for kind in (FLOW, SHARE, LINK, ROOM)
)
_ARRAYS = types.Tuple(
    (
        FLOWS, _SHARES, _LINKS, MINES, _ROOMS, _SMALL, _TABLE, _TABLE,
        _FLOATS, _WORDS, _FLOATS, _WORDS, _TABLE, _WORDS,
    )
)  # fmt: skip
_put, arrays = handing(_ARRAYS)
"""Of the second: all of them, in this order, by the address where they are kept."""


@compiled(types.void(types.int64, _ARRAYS), lean=True)
def keep(address: int, x: Any) -> None:
    """Keep the arrays' descriptions at an address."""
    _put(address, x)
