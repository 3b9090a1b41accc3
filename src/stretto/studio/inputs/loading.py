"""What a studio was given, read: recordings, a program, a machine, reports."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stretto import topology
from stretto.errors import CallError, StrettoError
from stretto.program.ir import Program
from stretto.studio.inputs.given import NamedInputs
from stretto.studio.inputs.simulated import simulated
from stretto.topology import Machine
from stretto.trace import Recording, read_all

if TYPE_CHECKING:
    from stretto.search.evolve import Judged

_MOST_REPORT_BYTES = 256 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedInputs:
    """What a studio shows: all that was given, read."""

    given: NamedInputs = field(default_factory=NamedInputs)
    recording: Recording | None = None
    other: Recording | None = None
    program: Program | None = None
    machine: Machine | None = None
    reports: Mapping[str, Any] = field(default_factory=dict)
    """By the file's name."""
    searches: Mapping[str, tuple[Mapping[str, str], Sequence[Judged]]] = field(
        default_factory=dict
    )
    """What a run says of itself, and its verdicts, by the file's name."""
    notes: tuple[str, ...] = ()
    """What could not be shown, and why."""


def load(given: NamedInputs) -> LoadedInputs:
    """Return all that was given, read; an error says which file is wrong, and how."""
    if len(given.recordings) > 2:
        raise CallError(f"{len(given.recordings)} recordings; want one, or two")
    recordings = [read_all(path) for path in given.recordings]
    reports = {path.name: _report(path) for path in given.reports}
    searches = {path.name: _search(path) for path in given.searches}
    notes: list[str] = []
    machine = _machine(given, recordings, notes)
    if not recordings and given.program is not None:
        try:
            recordings = [simulated(given, machine)]
        except StrettoError as e:
            notes.append(f"the program could not be simulated: {e}")
    return LoadedInputs(
        given=given,
        recording=recordings[0] if recordings else None,
        other=recordings[1] if len(recordings) > 1 else None,
        program=given.program,
        machine=machine,
        reports=reports,
        searches=searches,
        notes=(*notes, *(text for one in recordings for text in one.cut)),
    )


def stamp(given: NamedInputs) -> tuple[tuple[str, int, int], ...]:
    """Return what changes when a recording grows: names, sizes, dates of its files."""
    files = [
        file
        for path in (*given.recordings, *given.searches)
        for file in (sorted(path.glob("*.trace")) if path.is_dir() else [path])
    ]
    found = []
    for file in files:
        try:
            said = file.stat()
        except OSError:  # gone since it was listed
            continue
        found.append((str(file), said.st_size, said.st_mtime_ns))
    return tuple(found)


def _machine(
    given: NamedInputs, recordings: list[Recording], notes: list[str]
) -> Machine | None:
    """Return the machine that was named, else that of the recording, if it is known."""
    if given.machine:
        return topology.load(given.machine)
    if recordings and (name := recordings[0].run.machine):
        if name not in topology.names() and ("/" in name or "." in name):
            notes.append(f"the recording names the machine {name!r}; give --machine")
            return None
        try:
            return topology.load(name)
        except StrettoError as e:
            notes.append(f"links are not known: {e}; give --machine")
    return None


def _search(path: Path) -> tuple[Mapping[str, str], Sequence[Judged]]:
    if not path.is_file() or not path.stat().st_size:
        raise CallError(f"{path}: no such file of a search")
    from stretto.search.evolve import SearchRun  # it loads what is compiled

    run = SearchRun(path)
    try:
        return run.said, run.rows()
    finally:
        run.close()


def _report(path: Path) -> Any:
    try:
        if path.stat().st_size > _MOST_REPORT_BYTES:
            raise CallError(f"{path}: larger than {_MOST_REPORT_BYTES >> 20} MB")
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as e:
        raise CallError(f"{path}: {e.strerror or e}") from None
    except (ValueError, RecursionError) as e:
        raise CallError(f"{path}: not JSON: {str(e)[:100]}") from None
    if not isinstance(found, list) or not all(
        isinstance(one, dict) and isinstance(one.get("trials"), list) for one in found
    ):
        raise CallError(f"{path}: want what `stretto tune --report` writes")
    return found
