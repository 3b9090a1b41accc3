"""The processes of this host that make calls together, from one of them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from stretto.errors import TraceError
from stretto.trace import Recording, merge, snapshot_of_pid

__all__ = ["attached", "look_at"]


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


def look_at(pids: Iterable[int]) -> Recording:
    """Return the last calls of processes of this host, of those that are there."""
    found: list[Recording] = []
    for pid in pids:
        try:
            one = snapshot_of_pid(pid)
        except TraceError:
            continue
        if not {i.rank for i in one.ranks} & {i.rank for r in found for i in r.ranks}:
            found.append(one)
    return merge(found)


def _processes() -> list[int]:
    """Return the processes of this host that may be looked at."""
    return sorted(
        int(path.name)
        for path in Path("/proc").iterdir()
        if path.name.isdigit() and path.is_dir()
    )
