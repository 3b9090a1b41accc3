"""Jobs from files: TOML as `stretto cluster trace` writes it, or a log as CSV.

Of a log these columns are read, by any of their usual names: who, when it came, how
many workers, how long it ran, and, if there, which profile. What ran without a profile
gets one by a hash of its name.
"""

from __future__ import annotations

import csv
import dataclasses
import datetime
import math
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from stretto.errors import CallError, StrettoError, UnknownNameError, why_unread
from stretto.network.jobs import profiles
from stretto.network.jobs.job import Job
from stretto.topology import Reader

__all__ = ["MOST_JOBS", "read", "write"]

MOST_JOBS = 10_000
_MOST_NBYTES = 16 << 20
_COLUMNS = {
    "name": ("job_id", "jobid", "job_name", "name", "id"),
    "arrives": ("submit_time", "submitted_time", "submit", "arrival", "arrives_s"),
    "workers": ("gpu_num", "num_gpus", "num_gpu", "gpus", "workers"),
    "takes": ("duration", "run_time", "runtime", "duration_s"),
    "profile": ("profile", "model"),
}
_OPTIONAL = ("profile",)
_ITEMS = {
    "begins_ms": 0.0,
    "jitter": 0.0,
    "noise": math.inf,
}


def read(path: str | Path) -> tuple[Job, ...]:
    """Return the jobs of a file, in the order of their coming."""
    file = Path(path)
    try:
        size = file.stat().st_size
        text = file.read_text(encoding="utf-8") if size <= _MOST_NBYTES else ""
    except (OSError, ValueError) as e:
        raise CallError(f"{file}: {why_unread(e)}; want a file of jobs") from None
    if size > _MOST_NBYTES:
        raise CallError(
            f"{file}: has {size >> 20} MiB; want at most {_MOST_NBYTES >> 20},"
            f" or {MOST_JOBS} jobs"
        )
    made = _rows(file, text) if file.suffix == ".csv" else _tables(file, text)
    jobs = sorted(made, key=lambda job: job.arrives_ms)
    if not jobs:
        raise CallError(f"{file}: has no jobs; want at least one")
    seen: set[str] = set()
    for job in jobs:
        if job.name in seen:
            raise CallError(f"{file}: two jobs named {job.name!r}; want one of each")
        seen.add(job.name)
    return tuple(jobs)


def _tables(file: Path, text: str) -> list[Job]:
    top = Reader.of(text, where=str(file), refusal=CallError)
    found: list[Job] = []
    for table in top.tables("jobs"):
        if len(found) >= MOST_JOBS:
            raise top.wrong("jobs", f"at most {MOST_JOBS} jobs")
        found.append(_job(table, f"job{len(found)}"))
    top.done()
    return found


def _job(table: Reader, name: str) -> Job:
    home = table.text("profile", "")
    steps = profiles.read_steps(table, home)
    model = None
    if home:
        if steps:
            raise table.wrong("steps", "steps or a profile, not both")
        try:
            model = profiles.profile(home)
        except UnknownNameError:
            raise table.among("profile", profiles.names()) from None
    name = table.text("name", name)
    ranks = table.integers("ranks") if "ranks" in table else ()
    workers = table.integer(
        "workers", len(ranks) or (model.workers if model else 1), least=1
    )
    iterations = table.integer("iterations", 100, least=1)
    arrives = table.number("arrives_s", 0.0) * 1e3
    more = {key: table.number(key, value) for key, value in _ITEMS.items()}
    if model and "noise" not in table:
        more["noise"] = model.noise
    table.done()
    try:
        return Job(
            name=name,
            steps=model.steps if model else steps,
            workers=workers,
            iterations=iterations,
            arrives_ms=arrives,
            ranks=tuple(ranks),
            profile=home,
            **more,
        )
    except CallError as e:
        raise CallError(f"{table.where}, {table.path}: {e}") from None


def _rows(file: Path, text: str) -> list[Job]:
    lines = csv.reader(text.splitlines())
    try:
        head = [name.strip().lower() for name in next(lines, [])]
        places = _places(file, head)
        found: list[Job] = []
        for cells in lines:
            if not any(cell.strip() for cell in cells):
                continue
            if len(found) >= MOST_JOBS:
                raise CallError(f"{file}: more than {MOST_JOBS} jobs; want fewer")
            job = _row(f"{file}:{lines.line_num}", cells, places)
            if job is not None:
                found.append(job)
    except csv.Error as e:
        raise CallError(f"{file}:{lines.line_num}: {e}; want CSV") from None
    first = min((job.arrives_ms for job in found), default=0.0)
    return [
        dataclasses.replace(job, arrives_ms=job.arrives_ms - first) for job in found
    ]


def _places(file: Path, head: list[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for what, spellings in _COLUMNS.items():
        there = [head.index(name) for name in spellings if name in head]
        if there:
            found[what] = there[0]
        elif what not in _OPTIONAL:
            raise CallError(
                f"{file}: columns {', '.join(head)[:200] or 'none'}; want one of "
                f"{', '.join(spellings)} for `{what}`"
            )
    return found


def _row(where: str, cells: list[str], places: dict[str, int]) -> Job | None:
    """Return the job of a row; None for one that used no worker or ended at once."""

    def cell(what: str) -> str:
        at = places[what]
        return cells[at].strip() if at < len(cells) else ""

    workers, takes = _number(where, "workers", cell), _number(where, "takes", cell)
    if workers < 1 or takes <= 0:
        return None
    name = cell("name") or where.rpartition(":")[2]
    known = profiles.names()
    model = cell("profile").lower() if "profile" in places else ""
    if not model:
        model = known[zlib.crc32(name.encode()) % len(known)]
    try:
        found = profiles.profile(model)
        once = found.job(name, iterations=1, workers=round(workers))
        return found.job(
            name,
            iterations=max(1, round(takes * 1e3 / once.period_ms)),
            workers=round(workers),
            arrives_ms=_when(where, cell("arrives")),
        )
    except StrettoError as e:
        raise CallError(f"{where}: {e}") from None


def _number(where: str, what: str, cell: Any) -> float:
    text = cell(what)
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < 1e9:
        raise CallError(f"{where}, {what}: got {text[:40]!r}; want a number, 0 or more")
    return value


def _when(where: str, text: str) -> float:
    """Return milliseconds, of seconds or of a date and time."""
    try:
        seconds = float(text)
    except ValueError:
        try:
            moment = datetime.datetime.fromisoformat(text)
        except ValueError:
            seconds = math.nan
        else:
            seconds = moment.replace(tzinfo=datetime.UTC).timestamp()
    if not 0 <= seconds < 1e11:
        raise CallError(
            f"{where}, arrives: got {text[:40]!r}; want seconds, or a date and time"
        )
    return seconds * 1e3


def write(jobs: Iterable[Job], path: str | Path) -> None:
    """Write jobs of profiles as TOML that `read` reads."""
    parts = []
    for job in jobs:
        lines = [
            "[[jobs]]",
            f'name = "{job.name}"',
            f'profile = "{job.profile}"',
            f"workers = {job.workers}",
            f"iterations = {job.iterations}",
            f"arrives_s = {job.arrives_ms / 1e3:.3f}",
        ]
        if job.begins_ms:
            lines.append(f"begins_ms = {job.begins_ms:.3f}")
        if job.jitter:
            lines.append(f"jitter = {job.jitter:g}")
        parts.append("\n".join(lines) + "\n")
    Path(path).write_text("\n".join(parts), encoding="utf-8")
