"""One recording of many: numbers that all share, one clock, each rank once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from stretto.errors import TraceError
from stretto.trace.align import aligned
from stretto.trace.file import SUFFIX, read, renumbered
from stretto.trace.snapshot import snapshot
from stretto.trace.tables import (
    CALL,
    SAMPLE,
    STEP,
    CallKind,
    CodeLine,
    Comm,
    Recording,
    Run,
    Table,
)


def merge(recordings: Sequence[Recording]) -> Recording:
    """Return several recordings as one, its times on the first host's clock."""
    comms: dict[Comm, int] = {}
    kinds: dict[CallKind, int] = {}
    parts = [renumbered(one, comms, kinds) for one in recordings]
    samples, places = _samples(recordings)
    infos = [info for one in parts for info in one.ranks]
    many = Counter(info.rank for info in infos)
    for rank, count in many.items():
        if count > 1:
            raise TraceError(
                f"{count} recordings have rank {rank}; want those of one run, each once"
            )
    runs = [one.run for one in parts if one.run != Run()]
    return aligned(
        Recording(
            calls=np.concatenate([np.zeros(0, CALL), *(p.calls for p in parts)]),
            steps=np.concatenate([np.zeros(0, STEP), *(p.steps for p in parts)]),
            samples=samples,
            places=places,
            ranks=tuple(sorted(infos, key=lambda info: info.rank)),
            comms=tuple(comms),
            kinds=tuple(kinds),
            run=runs[0] if runs else Run(),
            dropped=tuple(d for one in parts for d in one.dropped),
            waits=tuple(w for one in parts for w in one.waits),
            cut=tuple(text for one in parts for text in one.cut),
        )
    )


def _samples(recordings: Sequence[Recording]) -> tuple[Table, tuple[CodeLine, ...]]:
    """Return all samples, and the places that they name."""
    places: dict[CodeLine, int] = {}
    tables = [np.zeros(0, SAMPLE)]
    for one in recordings:
        of_places = [places.setdefault(place, len(places)) for place in one.places]
        table = one.samples.copy()
        table["place"] = np.array([*of_places, -1])[table["place"]]
        tables.append(table)
    return np.concatenate(tables), tuple(places)


def read_all(path: str | Path) -> Recording:
    """Return the recording of a file, or of all files of a folder, as one.

    What killed processes had not written is read from the rings that they left there.
    Others may still be ending: each writes its file to the end, and then its rings go.
    So rings are read first, and those that are gone meanwhile are in the files.
    """
    path = Path(path)
    if not path.is_dir():
        return read(path)
    left = [
        one for file in _begun(path, "*.rings") if (one := _rings(file)) is not None
    ]
    written = [_named(read(file), file) for file in _begun(path, f"*{SUFFIX}")]
    if not written and not left:
        raise TraceError(f"{path}: there is no recording (*{SUFFIX}) in this folder")
    found = [one for one in written if one.ranks]
    whose = {(one.ranks[0].rank, one.ranks[0].pid): i for i, one in enumerate(found)}
    for one in left:
        place = whose.get((one.ranks[0].rank, one.ranks[0].pid))
        if place is None:
            found.append(one)
        else:
            found[place] = _completed(found[place], one)
    return merge(found)


def _begun(folder: Path, pattern: str) -> list[Path]:
    """Return files but for those whose process was killed before it wrote a word."""
    return [file for file in sorted(folder.glob(pattern)) if _first_byte(file)]


def _first_byte(file: Path) -> int:
    try:
        with file.open("rb") as opened:
            return opened.read(1)[0]
    except (IndexError, FileNotFoundError):
        return 0


def _rings(file: Path) -> Recording | None:
    try:
        return snapshot(file)
    except TraceError:
        if file.exists():
            raise
        return None


def _completed(written: Recording, left: Recording) -> Recording:
    """Return what a process has written, and what it had still to write."""
    comms = {comm: i for i, comm in enumerate(written.comms)}
    kinds = {kind: i for i, kind in enumerate(written.kinds)}
    left = renumbered(left, comms, kinds)
    last = np.zeros(len(comms), np.int64)
    np.maximum.at(last, written.calls["comm"], written.calls["seq"])
    more = left.calls[left.calls["seq"] > last[left.calls["comm"]]]
    return replace(
        written,
        calls=np.concatenate([written.calls, more]),
        comms=tuple(comms),
        kinds=tuple(kinds),
        waits=(*written.waits, *left.waits),
    )


def _named(recording: Recording, file: Path) -> Recording:
    if not recording.ranks and recording.num_events:
        raise TraceError(f"{file}: it does not say whose it is")
    return recording
