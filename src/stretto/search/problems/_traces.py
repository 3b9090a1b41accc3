"""Traces of requests: files of others, as numbered objects and their sizes."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stretto.errors import ParseError, reading

__all__ = ["RequestTrace", "load_trace", "sampled"]

_ORACLE = np.dtype([("time", "<u4"), ("id", "<u8"), ("size", "<u4"), ("next", "<i8")])
"""A request in libCacheSim's oracleGeneral format."""
_MOST_BYTES = 4 << 30


@dataclass(frozen=True, slots=True)
class RequestTrace:
    """Requests in order: numbered objects, and how large each is then."""

    ids: NDArray[np.int64]
    sizes: NDArray[np.int64]

    @property
    def count(self) -> int:
        """How many objects there are."""
        return int(self.ids.max()) + 1 if len(self.ids) else 0

    @property
    def footprint(self) -> int:
        """The bytes of all objects, each counted once as it is first asked for."""
        _, first = np.unique(self.ids, return_index=True)
        return int(self.sizes[first].sum())

    def part(self, begin: int, end: int) -> RequestTrace:
        """Return some of the requests, numbered anew."""
        return _numbered(self.ids[begin:end], self.sizes[begin:end])


def _numbered(ids: NDArray[np.int64], sizes: NDArray[np.int64]) -> RequestTrace:
    """Return a trace whose objects are numbered in the order of their names."""
    _, numbers = np.unique(ids, return_inverse=True)
    return RequestTrace(
        np.ascontiguousarray(numbers, np.int64), np.ascontiguousarray(sizes)
    )


def load_trace(path: Path) -> RequestTrace:
    """Return the trace of a file: oracleGeneral, or CSV with columns of id and size.

    ParseError names the byte or the line where it cannot be read.
    """
    data = path.read_bytes() if path.stat().st_size <= _MOST_BYTES else b""
    if not data:
        raise ParseError(f"{path}: want a trace of 1 byte to {_MOST_BYTES >> 30} GB")
    if path.suffix.lower() in (".csv", ".txt"):
        with reading(ParseError, str(path), "lines of time,id,size"):
            return _from_csv(path, data)
    whole, rest = divmod(len(data), _ORACLE.itemsize)
    if rest:
        raise ParseError(
            f"{path}: truncated at byte {len(data)}: request {whole} begins at byte "
            f"{whole * _ORACLE.itemsize} and has {rest} of {_ORACLE.itemsize} bytes"
        )
    rows = np.frombuffer(data, _ORACLE)
    if (zero := np.flatnonzero(rows["size"] == 0)).size:
        at = int(zero[0])
        raise ParseError(
            f"{path}: request {at}, at byte {at * _ORACLE.itemsize}, is empty: want "
            "oracleGeneral (time, id, size, next), uncompressed"
        )
    return _numbered(rows["id"].astype(np.int64), rows["size"].astype(np.int64))


def _from_csv(path: Path, data: bytes) -> RequestTrace:
    """Return a trace of lines `time,id,size`, or of those columns by their names."""
    lines = csv.reader(io.StringIO(data.decode()))
    head = [word.strip().lower() for word in next(lines)]
    named = any(word in ("id", "obj_id", "key") for word in head)
    at_id = next((head.index(w) for w in ("id", "obj_id", "key") if w in head), 1)
    at_size = next(
        (head.index(w) for w in ("size", "obj_size", "bytes") if w in head), 2
    )
    ids: dict[str, int] = {}
    found, sizes = [], []
    rows = lines if named else iter([head, *lines])
    for number, row in enumerate(rows, 2 if named else 1):
        if not row or row[0].startswith("#"):
            continue
        try:
            size = int(row[at_size])
            name = row[at_id]
        except (IndexError, ValueError):
            size, name = 0, ""
        if not 0 < size < 1 << 62:
            raise ParseError(
                f"{path}:{number}: {','.join(row)[:80]!r}: want time,id,size, a size "
                "of at least 1"
            )
        found.append(ids.setdefault(name, len(ids)))
        sizes.append(size)
    if not found:
        raise ParseError(f"{path}: no requests")
    return _numbered(np.array(found, np.int64), np.array(sizes, np.int64))


def sampled(trace: RequestTrace, share: float) -> RequestTrace:
    """Return the requests of part of the objects, chosen by a hash of their numbers."""
    if share >= 1:
        return trace
    mixed = (trace.ids.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(29)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    chosen = (mixed >> np.uint64(40)).astype(float) / (1 << 24) < share
    return _numbered(trace.ids[chosen], trace.sizes[chosen])
