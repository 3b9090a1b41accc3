"""The processes of this host that make calls together, from one of them."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from stretto.caches import private
from stretto.errors import CollectiveTimeout, TraceError
from stretto.trace import MONOTONIC, Recording, merge, snapshot_of_pid
from stretto.watch.diagnose import diagnose
from stretto.watch.page import page


def attached(pid: int) -> Recording:
    """Return the last calls of a process, and of those here that share its job.

    Those are the processes that have a communicator of the same name, members and
    meeting. What cannot be looked at is left out.
    """
    first = snapshot_of_pid(pid)
    wanted = {(c.name, c.members, c.meeting) for c in first.comms}
    ranks = {info.rank for info in first.ranks}
    found = [first]
    for other in _processes():
        if other == pid:
            continue
        try:
            one = snapshot_of_pid(other)
        except TraceError:
            continue
        mine = {(c.name, c.members, c.meeting) for c in one.comms}
        if mine & wanted and not ranks & {info.rank for info in one.ranks}:
            ranks |= {info.rank for info in one.ranks}
            found.append(one)
    return merge(found)


def tell_why(error: BaseException) -> None:
    """Add to a timeout what the ranks of this host were doing, as a note.

    Where recordings go to a folder (`STRETTO_TRACE`), the page goes there, too.
    """
    if not isinstance(error, CollectiveTimeout) or getattr(error, "__notes__", []):
        return
    try:
        recording = attached(os.getpid())
        found = diagnose(recording, round(MONOTONIC.now_us() * 1e3))
    except (TraceError, OSError):
        return  # nothing is recorded here: the error says what it can
    if not found.findings:
        return
    text = page(found, recording)
    error.add_note(text)
    folder = os.environ.get("STRETTO_TRACE", "")
    if folder and Path(folder).is_dir():
        name = Path(folder, f"hang-{os.getpid()}.txt")
        with contextlib.suppress(OSError), private(name) as file:
            file.write(f"{text}\n".encode())


def _processes() -> list[int]:
    """Return the processes of this host that may be looked at."""
    return sorted(
        int(path.name)
        for path in Path("/proc").iterdir()
        if path.name.isdigit() and path.is_dir()
    )
