"""Values that are no tensors, as JSON and back: what comes out is what went in.

JSON alone makes lists of tuples, and texts of numbers that are keys. A schedule that
asks a dict for the number of its step then finds nothing there, and says nothing.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import Any

import numpy as np

_KIND, _PARTS = "//kind", "//parts"
"""The keys of what stands for a value that JSON does not have."""
_KINDS = (Counter, OrderedDict, dict, tuple, set, frozenset)
_MADE = {kind.__name__: kind for kind in _KINDS}


def packed(value: Any) -> Any:
    """Return what JSON has of a value; `TypeError`: it cannot be sent."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, np.generic):
        return packed(value.item())
    if isinstance(value, list):
        return [packed(one) for one in value]
    kind = next((one for one in _KINDS if isinstance(value, one)), None)
    if kind is None:
        raise TypeError(f"a value of type {type(value).__name__}")
    if kind is dict and _KIND not in value and all(type(k) is str for k in value):
        return {key: packed(one) for key, one in value.items()}
    parts = value.items() if isinstance(value, dict) else value
    return {_KIND: kind.__name__, _PARTS: [packed(one) for one in parts]}


def unpacked(said: Any) -> Any:
    """Return the value of which `packed` has made this."""
    if isinstance(said, list):
        return [unpacked(one) for one in said]
    if not isinstance(said, dict):
        return said
    if _KIND not in said:
        return {key: unpacked(one) for key, one in said.items()}
    kind = _MADE[said[_KIND]]
    parts: Any = [unpacked(one) for one in said[_PARTS]]
    return kind(dict(parts) if kind is Counter else parts)
