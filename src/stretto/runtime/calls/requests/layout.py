"""What a call looks like: all that a request would look at in its arrays.

That is what their readers say (array_readers.py), whether they are registered, and how
they overlap. Calls that look alike differ in addresses alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

import numpy as np

from stretto.arrays import CPU, read_array
from stretto.executors import Session

MISS: Final = object()
"""What a known call returns when its arrays are not those it knows."""

Broke: TypeAlias = Callable[[BaseException], BaseException]
"""What to raise of what a launch raises."""
Seen: TypeAlias = tuple[Any, ...]
"""A layout, and what a launch is given for `x` and `out`.

A layout is a verb, its arguments, what was read of `x` and of `out`, and how far apart
they begin where they overlap. An `out` that is `x` is not read again, and 0 apart.
"""
READ_OF = {"x": 2, "out": 3}
"""Where a layout has what was read of an array; at the end of that, whether peers do
not reach it. None: it was not read.
"""


def look(
    key: tuple[Any, ...],
    x: Any,
    out: Any,
    sessions: Mapping[str, Session],
) -> Seen | None:
    """Return the layout of a call, or None when its arrays must be examined.

    `key` is the verb, two identities, and all other arguments.
    """
    seen_x: Any = None
    seen_out: Any = None
    apart = None
    if type(x) is np.ndarray or type(out) is np.ndarray:
        own = sessions.get(CPU)
        if own is None or not (x is None or type(x) is np.ndarray):
            return None
        if x is not None:
            seen_x = x.shape, x.dtype, x.flags.num, own.offset(x) is None
        if out is x:
            return (key[0], key[3:], seen_x, None, 0), x, x
        if out is not None:
            if type(out) is not np.ndarray:
                return None
            seen_out = out.shape, out.dtype, out.flags.num, own.offset(out) is None
            if x is not None and np.may_share_memory(x, out):
                apart = _start(out) - _start(x)
        return (key[0], key[3:], seen_x, seen_out, apart), x, out
    source = target = nbytes = 0
    if x is not None:
        found = read_array(x)
        if found is None or (session := sessions.get(found[0])) is None:
            return None
        _, alike, source, nbytes = found
        seen_x = alike, session.offset_at(source, nbytes) is None
    if out is x:
        return (key[0], key[3:], seen_x, None, 0), source, source
    if out is not None:
        found = read_array(out)
        if found is None or (session := sessions.get(found[0])) is None:
            return None
        _, alike, target, size = found
        seen_out = alike, session.offset_at(target, size) is None
        if target < source + nbytes and source < target + size:
            apart = target - source
    return (key[0], key[3:], seen_x, seen_out, apart), source, target


def _start(array: Any) -> int:
    return int(array.__array_interface__["data"][0])
