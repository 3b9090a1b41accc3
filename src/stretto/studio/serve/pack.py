"""A view's data as bytes: a JSON text with its arrays beside it, column by column.

The same bytes go to a live page and, compressed, into a page that is a file. `pack.js`
reads them. Legend: header size (uint32), 0, header (JSON), arrays; each padded to 8.
In the header an array is `{"$array": [type, offset, length]}`.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

_TYPES = ("u1", "i1", "u2", "i2", "u4", "i4", "f4", "f8")
"""What browsers have typed arrays for, without numbers that lose digits there."""


def pack(document: Mapping[str, Any]) -> bytes:
    """Return a document of plain values and arrays as bytes."""
    arrays: list[bytes] = []
    size = 0

    def lifted(value: Any) -> Any:
        nonlocal size
        match value:
            case np.ndarray():
                kind = value.dtype.str[1:]
                if kind not in _TYPES:
                    raise TypeError(f"an array of {value.dtype}; want {_TYPES}")
                raw = np.ascontiguousarray(value).tobytes()
                said = {"$array": [kind, size, value.size]}
                arrays.append(raw.ljust(_padded(len(raw)), b"\0"))
                size += len(arrays[-1])
                return said
            case Mapping():
                return {str(k): lifted(v) for k, v in value.items()}
            case list() | tuple():
                return [lifted(v) for v in value]
            case np.generic():
                return lifted(value.item())
            case float():
                return value if math.isfinite(value) else None
            case _:
                return value

    head = json.dumps(lifted(document), separators=(",", ":"), allow_nan=False).encode()
    head = head.ljust(_padded(len(head) + 8) - 8, b" ")
    return b"".join([struct.pack("<II", len(head), 0), head, *arrays])


def unpack(raw: bytes) -> Any:
    """Return the document again, as the page sees it."""
    size = struct.unpack_from("<I", raw)[0]
    start = 8 + size

    def settled(value: Any) -> Any:
        if isinstance(value, dict):
            if "$array" in value:
                kind, offset, count = value["$array"]
                return np.frombuffer(raw, f"<{kind}", count, start + offset)
            return {k: settled(v) for k, v in value.items()}
        return [settled(v) for v in value] if isinstance(value, list) else value

    return settled(json.loads(raw[8:start]))


def _padded(size: int) -> int:
    return -(-size // 8) * 8
