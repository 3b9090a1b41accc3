"""The bytes of a recording: chunks, one after another, each whole or not there.

A file is `MAGIC` and chunks. A chunk is a head of 32 bytes and its payload; both have a
checksum, so what a killed process has half written is told from what it has written.
See docs/reference/trace-format.md.
"""

from __future__ import annotations

import json
import re
import struct
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from stretto.errors import TraceError
from stretto.trace.tables import CALL, SAMPLE, STEP, Table

MAGIC = b"stretto trace 1\n"
_MARK = b"CHNK"
_HEAD = struct.Struct("<4sIQQII")
"""Mark, kind, rows, bytes of the payload, its crc32, the crc32 of what precedes."""
META, CALLS, STEPS, SAMPLES = 1, 2, 3, 4
"""Kinds of chunks; a reader passes over those that it does not know."""
TYPES = {CALLS: CALL, STEPS: STEP, SAMPLES: SAMPLE}
_LATER = frozenset({"delayed"})
"""Columns that files of before do not have: 0 is read, for not known."""
MOST_META_BYTES = 64 << 20
_PLAIN = re.compile("[<|>]?([iu][1248]|f[248])")


class FileChunk(NamedTuple):
    """Where a chunk lies in its file."""

    kind: int
    rows: int
    at: int
    nbytes: int


class FileEnd(NamedTuple):
    """Where reading ended before the file did, and why."""

    at: int
    why: str


def table_bytes(table: Table) -> bytes:
    """Return a chunk of rows: its columns' names and types, and then the columns."""
    kind = next(k for k, dtype in TYPES.items() if dtype == table.dtype)
    names = table.dtype.names or ()
    said = json.dumps([[name, table.dtype[name].str] for name in names]).encode()
    said = said.ljust(-(-len(said) // 8) * 8)
    parts = [struct.pack("<Q", len(said)), said]
    parts += [np.ascontiguousarray(table[name]).tobytes() for name in names]
    return _chunk(kind, len(table), b"".join(parts))


def meta_bytes(document: Mapping[str, Any]) -> bytes:
    """Return a chunk of facts."""
    return _chunk(META, 0, json.dumps(document, separators=(",", ":")).encode())


def _chunk(kind: int, rows: int, payload: bytes) -> bytes:
    crc = zlib.crc32(payload)
    head = _HEAD.pack(_MARK, kind, rows, len(payload), crc, 0)[:-4]
    return head + struct.pack("<I", zlib.crc32(head)) + payload


def scan(file: BinaryIO, name: str) -> Iterator[FileChunk | FileEnd]:
    """Yield the whole chunks of a file, and last where it is cut, if it is.

    The payloads are not read here but for their checksums.
    """
    if file.read(len(MAGIC)) != MAGIC:
        raise TraceError(
            f"{name}: it does not begin as a recording of stretto does; want a file "
            f"that `stretto trace` wrote"
        )
    end = file.seek(0, 2)
    at = len(MAGIC)
    while at < end:
        file.seek(at)
        raw = file.read(_HEAD.size)
        if len(raw) < _HEAD.size:
            yield FileEnd(at, "ends in the head of a chunk")
            return
        mark, kind, rows, nbytes, crc, head_crc = _HEAD.unpack(raw)
        if mark != _MARK or zlib.crc32(raw[:-4]) != head_crc:
            yield FileEnd(at, "has a chunk whose head is not whole")
            return
        if nbytes > end - at - _HEAD.size:
            yield FileEnd(at, "ends in the midst of a chunk")
            return
        if _crc_of(file, nbytes) != crc:
            yield FileEnd(at, "has a chunk whose checksum is wrong")
            return
        yield FileChunk(kind, rows, at + _HEAD.size, nbytes)
        at += _HEAD.size + nbytes


def _crc_of(file: BinaryIO, nbytes: int) -> int:
    crc = 0
    while nbytes > 0:
        part = file.read(min(nbytes, 1 << 20))
        if not part:
            return -1
        crc, nbytes = zlib.crc32(part, crc), nbytes - len(part)
    return crc


def document_of(file: BinaryIO, chunk: FileChunk, name: str) -> Mapping[str, Any]:
    """Return the facts of a chunk."""
    where = f"{name}: byte {chunk.at}"
    if chunk.nbytes > MOST_META_BYTES:
        raise TraceError(
            f"{where}: {chunk.nbytes} bytes of facts; want {MOST_META_BYTES} at most"
        )
    file.seek(chunk.at)
    try:
        document = json.loads(file.read(chunk.nbytes))
    except (ValueError, RecursionError) as e:
        raise TraceError(f"{where}: the facts are not JSON: {str(e)[:80]}") from None
    if not isinstance(document, dict):
        raise TraceError(f"{where}: the facts are no JSON object")
    return document


def table_of(file: BinaryIO, chunk: FileChunk, name: str, into: Table) -> None:
    """Read the rows of a chunk into a part of a table: as many."""
    where = f"{name}: byte {chunk.at}"
    file.seek(chunk.at)
    dtype = TYPES[chunk.kind]
    columns, at = _columns(file, chunk, where)
    for column, kind in columns:
        nbytes = chunk.rows * kind.itemsize
        if column in (dtype.names or ()):
            if kind != dtype[column]:
                raise TraceError(
                    f"{where}: column {column!r} is of type {kind.str}; want "
                    f"{dtype[column].str}"
                )
            file.seek(at)
            into[column] = np.frombuffer(file.read(nbytes), kind)
        at += nbytes
    absent = set(dtype.names or ()) - {column for column, _ in columns}
    for column in absent & _LATER:
        into[column] = 0
    missing = absent - _LATER
    if missing or at != chunk.at + chunk.nbytes:
        what = f"no column {min(missing)!r}" if missing else "columns of another size"
        raise TraceError(f"{where}: {chunk.rows} rows with {what}")


def _columns(
    file: BinaryIO, chunk: FileChunk, where: str
) -> tuple[list[tuple[str, np.dtype[Any]]], int]:
    """Return the names and types of a chunk's columns, and where those begin."""
    raw = file.read(8) if chunk.nbytes >= 8 else b""
    size = int.from_bytes(raw, "little") if raw else chunk.nbytes
    if size > min(chunk.nbytes - 8, 1 << 16):
        raise TraceError(f"{where}: it does not say what its columns are")
    try:
        said = [(str(n), _plain_type(str(t))) for n, t in json.loads(file.read(size))]
    except (ValueError, TypeError, RecursionError):
        raise TraceError(f"{where}: its columns' names and types are no list") from None
    width = sum(kind.itemsize for _, kind in said)
    if len({n for n, _ in said}) < len(said) or (
        chunk.rows * width > chunk.nbytes - 8 - size
    ):
        raise TraceError(f"{where}: {chunk.rows} rows do not fit in {chunk.nbytes}")
    return said, chunk.at + 8 + size


def _plain_type(said: str) -> np.dtype[Any]:
    """Return the type of a column: numbers only, so that none can name an object."""
    if not _PLAIN.fullmatch(said):
        raise ValueError(said)
    return np.dtype(said)
