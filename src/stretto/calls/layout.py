"""What a call looks like: all that a request would look at in its arrays.

That is what their readers say (array_readers.py), whether they are registered, and how
they overlap. Calls that look alike differ in addresses alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np

from stretto.arrays.array_readers import read_array
from stretto.arrays.operands import CPU, GPU
from stretto.epilogues import Bound
from stretto.executors import Session

__all__ = ["MISS", "Seen", "look"]

MISS: Final = object()
"""What a known call returns when its arrays are not those it knows."""
_ALIGNED = 16
"""Bytes that rows are moved by; of an epilogue, what begins elsewhere is examined."""

Seen: TypeAlias = tuple[Any, ...]
"""A layout; what a launch is given for `x` and `out`; of an epilogue what is beside."""


def look(
    key: tuple[Any, ...],
    x: Any,
    out: Any,
    sessions: Mapping[str, Session],
    bound: Bound | None = None,
) -> Seen | None:
    """Return the layout of a call, or None when its arrays must be examined.

    `key` is the verb, two identities, and all other arguments.
    """
    if bound is not None:
        return _with_epilogue(key, x, out, sessions, bound)
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


def _with_epilogue(
    key: tuple[Any, ...],
    x: Any,
    out: Any,
    sessions: Mapping[str, Session],
    bound: Bound,
) -> Seen | None:
    """Return the layout of a call on a GPU that names all its epilogue's outputs."""
    session = sessions.get(GPU)
    if session is None or not isinstance(bound, Bound):
        return None
    graph, outputs = bound.graph, bound.outputs
    if outputs is None or len(outputs) != len(graph.outputs):
        return None
    own = (x,) if out is None else (x, out)
    beside = [bound.inputs[name] for name in graph.inputs[1:]]
    beside += [outputs[name] for name, _ in graph.outputs]
    alike: list[Any] = []
    extra: list[Any] = []
    spans: list[tuple[int, int]] = []
    for place, given in enumerate((*own, *beside)):
        if place >= len(own) and (type(given) is float or type(given) is int):
            alike.append(None)
            extra.append(float(given))
            continue
        found = read_array(given)
        if found is None or found[0] != GPU or found[2] % _ALIGNED:
            return None
        _, seen, at, size = found
        if place < len(own):
            alike.append((seen, session.offset_at(at, size) is None))
        else:
            alike.append(seen)
            extra.append(at)
        spans.append((at, at + size))
    layout = (key[0], key[3:], id(graph), bound.row, *alike, *_overlaps(spans))
    return layout, spans[0][0], spans[len(own) - 1][0], extra


def _overlaps(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int, int]]:
    """Return which arrays overlap, and how far they are apart."""
    found = []
    for i, (start, end) in enumerate(spans):
        for j in range(i):
            a, b = spans[j]
            if start < b and a < end:
                found.append((i, j, a - start))
    return found
