"""Write recordings chunk by chunk, and read them whole: of one rank, or of many.

A file that ends in the midst of a chunk is read up to there, and the recording says so.
What is whole and wrong is a `TraceError`, in one line.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import numpy as np

from stretto.caches import private
from stretto.errors import TraceError
from stretto.trace.chunks import (
    CALLS,
    MAGIC,
    META,
    SAMPLES,
    STEPS,
    TYPES,
    FileChunk,
    FileEnd,
    document_of,
    meta_bytes,
    scan,
    table_bytes,
    table_of,
)
from stretto.trace.facts import Facts, read_facts, spell_facts
from stretto.trace.tables import (
    CALL,
    SAMPLE,
    STATES,
    STEP,
    STEP_KINDS,
    CallKind,
    Comm,
    Dropped,
    RankInfo,
    Recording,
    Table,
)

SUFFIX = ".trace"
MOST_EVENTS = 200_000_000
"""Events of one recording; more would not fit in most memories."""
_ROWS = 1 << 16
"""Rows of a chunk that is written whole."""
_OfRank = TypeVar("_OfRank", RankInfo, Dropped)


class TraceFile:
    """A file that grows by whole chunks; what was written stays if the process dies."""

    def __init__(self, path: str | Path) -> None:
        """Create the file, empty."""
        self.path = Path(path)
        self._file: BinaryIO = private(self.path)
        self._file.write(MAGIC)
        self._file.flush()

    def calls(self, rows: Table) -> None:
        """Append calls."""
        self._append(table_bytes(rows.astype(CALL, copy=False)), len(rows))

    def steps(self, rows: Table) -> None:
        """Append steps."""
        self._append(table_bytes(rows.astype(STEP, copy=False)), len(rows))

    def samples(self, rows: Table) -> None:
        """Append samples."""
        self._append(table_bytes(rows.astype(SAMPLE, copy=False)), len(rows))

    def facts(self, **known: Any) -> None:
        """Append what is known now, by the names of `Facts`.

        Calls refer to communicators and kinds by their number.
        """
        self._append(meta_bytes(spell_facts(Facts(**known))), 1)

    def _append(self, chunk: bytes, rows: int) -> None:
        if rows:
            self._file.write(chunk)
            self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> TraceFile:
        """Return itself; leaving the block closes it."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close the file."""
        self.close()


def write(path: str | Path, recording: Recording) -> None:
    """Write a recording to one file; a reader finds all of it or none."""
    path = Path(path)
    half = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with TraceFile(half) as file:
            file.facts(**{f.name: getattr(recording, f.name) for f in fields(Facts)})
            for at in range(0, len(recording.calls), _ROWS):
                file.calls(recording.calls[at : at + _ROWS])
            for at in range(0, len(recording.steps), _ROWS):
                file.steps(recording.steps[at : at + _ROWS])
            for at in range(0, len(recording.samples), _ROWS):
                file.samples(recording.samples[at : at + _ROWS])
        half.replace(path)
    finally:
        half.unlink(missing_ok=True)


def read(path: str | Path) -> Recording:
    """Return what a file holds."""
    path, name = Path(path), str(path)
    try:
        with path.open("rb") as file:
            return _read(file, name)
    except OSError as e:
        raise TraceError(f"{name}: {e.strerror or e}") from None


def _read(file: BinaryIO, name: str) -> Recording:
    facts, tables, cut = Facts(), [], ""
    for chunk in scan(file, name):
        if isinstance(chunk, FileEnd):
            cut = f"{name} {chunk.why}, at byte {chunk.at}; what follows is not read"
        elif chunk.kind == META:
            where = f"{name}: byte {chunk.at}"
            read_facts(document_of(file, chunk, name), where, facts)
        elif chunk.kind in TYPES:
            _refuse_rows(chunk, name)
            tables.append(chunk)
    recording = Recording(
        calls=_joined(file, name, [c for c in tables if c.kind == CALLS], CALL),
        steps=_joined(file, name, [c for c in tables if c.kind == STEPS], STEP),
        samples=_joined(file, name, [c for c in tables if c.kind == SAMPLES], SAMPLE),
        places=tuple(facts.places),
        ranks=_last(facts.ranks),
        comms=tuple(facts.comms),
        kinds=tuple(facts.kinds),
        run=facts.run,
        dropped=_last(facts.dropped),
        waits=tuple(facts.waits),
        cut=(cut,) if cut else (),
    )
    for complaint in _wrong(recording):
        raise TraceError(f"{name}: {complaint}")
    return recording


def _refuse_rows(chunk: FileChunk, name: str) -> None:
    """Refuse rows that the chunk is too small for, before there is memory for them."""
    size = TYPES[chunk.kind].itemsize
    if chunk.rows * size > chunk.nbytes:
        raise TraceError(
            f"{name}: byte {chunk.at}: {chunk.rows} rows in {chunk.nbytes} bytes; a "
            f"row has {size}"
        )


def _joined(
    file: BinaryIO, name: str, chunks: Sequence[FileChunk], dtype: np.dtype
) -> Table:
    total = sum(chunk.rows for chunk in chunks)
    if total > MOST_EVENTS:
        raise TraceError(f"{name}: {total} events; want at most {MOST_EVENTS}")
    table, at = np.empty(total, dtype), 0
    for chunk in chunks:
        table_of(file, chunk, name, table[at : at + chunk.rows])
        at += chunk.rows
    return table


def _last(said: Sequence[_OfRank]) -> tuple[_OfRank, ...]:
    """Return what was said last of each rank, by rank."""
    by_rank = {one.rank: one for one in said}
    return tuple(by_rank[rank] for rank in sorted(by_rank))


def _wrong(recording: Recording) -> Iterator[str]:
    """Yield what refers to nothing; what a reader would stumble over."""
    yield from _wrong_waits(recording)
    yield from _wrong_samples(recording)
    known = np.array([info.rank for info in recording.ranks], np.int64)
    for what, table in (("call", recording.calls), ("step", recording.steps)):
        if not len(table):
            continue
        for column, most in _references(what, recording):
            values = table[column]
            outside = (values < 0) | (values >= most)
            if outside.any():
                row = int(outside.argmax())
                yield (
                    f"{what} {row} has {column} {int(values[row])}; want one of "
                    f"{most} that the file names"
                )
        ranks = table["rank"]
        alien = np.flatnonzero(np.diff(ranks, prepend=ranks[0] - 1))
        strange = ~np.isin(ranks[alien], known)
        if strange.any():
            row = int(alien[strange.argmax()])
            yield f"{what} {row} is of rank {int(ranks[row])}, of which nothing is said"
        yield from _outsiders(what, table, recording)


def _wrong_waits(recording: Recording) -> Iterator[str]:
    for i, wait in enumerate(recording.waits):
        if not 0 <= wait.comm < len(recording.comms):
            yield f"waits[{i}] has comm {wait.comm}; want one that the file names"


def _wrong_samples(recording: Recording) -> Iterator[str]:
    samples = recording.samples
    place, ranks = samples["place"], [info.rank for info in recording.ranks]
    wrong = (place < -1) | (place >= len(recording.places))
    for row in np.flatnonzero(wrong)[:1].tolist():
        yield (
            f"sample {row} has place {int(place[row])}; want one of "
            f"{len(recording.places)} that the file names"
        )
    for row in np.flatnonzero(~np.isin(samples["rank"], ranks))[:1].tolist():
        yield f"sample {row} is of rank {int(samples['rank'][row])}, which is not named"


def _outsiders(what: str, table: Table, recording: Recording) -> Iterator[str]:
    """Yield calls of ranks that are not of the communicator."""
    both = table["comm"].astype(np.int64) << 32 | table["rank"]
    for pair in np.unique(both[np.flatnonzero(np.diff(both, prepend=-1))]).tolist():
        comm, rank = recording.comms[pair >> 32], pair & 0xFFFFFFFF
        if rank not in comm.members:
            yield f"a {what} in {comm.name[:60]} is of rank {rank}, no member of it"


def _references(what: str, recording: Recording) -> Iterator[tuple[str, int]]:
    yield "comm", len(recording.comms)
    yield "kind", len(recording.kinds) if what == "call" else len(STEP_KINDS)
    if what == "call":
        yield "state", len(STATES)


def renumbered(
    recording: Recording, comms: dict[Comm, int], kinds: dict[CallKind, int]
) -> Recording:
    """Return a recording by the numbers of others, which it adds its own to."""
    of_comms = np.array([comms.setdefault(c, len(comms)) for c in recording.comms])
    of_kinds = np.array([kinds.setdefault(k, len(kinds)) for k in recording.kinds])
    calls, steps = recording.calls.copy(), recording.steps.copy()
    if len(calls):
        calls["comm"] = of_comms[calls["comm"]]
        calls["kind"] = of_kinds[calls["kind"]]
    if len(steps):
        steps["comm"] = of_comms[steps["comm"]]
    waits = tuple(replace(w, comm=int(of_comms[w.comm])) for w in recording.waits)
    return replace(recording, calls=calls, steps=steps, waits=waits)
