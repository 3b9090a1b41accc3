"""Look at a job from outside: a watcher of its world, of the same user.

A job on this host is found by its socket; one elsewhere by its address.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from stretto.errors import CallError, StrettoError
from stretto.fabric.address import folder, reach
from stretto.fabric.meeting.environment import ADDRESS, find_place
from stretto.fabric.meeting.greet import greet
from stretto.fabric.meeting.join import join
from stretto.fabric.meeting.meeting import Meeting
from stretto.fabric.messages import WATCHER
from stretto.fabric.wire import Connection

_LOOK_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class JobMember:
    """One process of a job."""

    identity: str
    rank: int
    """-1: it stands by."""
    pid: int = 0
    host: str = ""
    said: dict[str, Any] = field(default_factory=dict)
    """What it says of itself."""
    gone: str | None = None
    """How it was lost, or nothing where it left in order; None: it is here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """A job at a moment."""

    generation: int
    """How often its ranks have changed."""
    members: tuple[JobMember, ...]
    """Its ranks in order, then those who stand by."""
    says: dict[str, Any] = field(default_factory=dict)
    """What who hosts its hub says."""

    @property
    def ranks(self) -> tuple[JobMember, ...]:
        """The ranks, in order."""
        return tuple(one for one in self.members if one.rank >= 0)

    def rank(self, number: int) -> JobMember:
        """Return a rank; CallError: there is none of this number."""
        if not 0 <= number < len(self.ranks):
            raise CallError(
                f"there is no rank {number}: this job has ranks 0 to "
                f"{len(self.ranks) - 1}"
            )
        return self.ranks[number]


def look(meeting: Meeting) -> JobView:
    """Return what a watcher sees of its job."""
    standing = meeting.standing
    welcome, facts, gone = standing.welcome, standing.facts, standing.gone
    names = [welcome.names[h] for h in welcome.hosts] or list(welcome.names)
    ranks = [
        JobMember(
            identity=identity,
            rank=rank,
            pid=welcome.pids[rank],
            host=names[rank] if rank < len(names) else "",
            said=facts.get(identity, {}),
            gone=gone.get(identity),
        )
        for rank, identity in enumerate(welcome.identities)
    ]
    free = [
        JobMember(identity=identity, rank=-1, said=facts.get(identity, {}))
        for identity in standing.standbys
    ]
    return JobView(
        generation=welcome.generation - welcome.since,
        members=(*ranks, *free),
        says=facts.get("", {}),
    )


@contextmanager
def watching(address: str | None = None) -> Iterator[Meeting]:
    """Watch a job within a block: the one at an address, or the only one here."""
    address = address or os.environ.get(ADDRESS)
    meeting = _only() if address is None else _at(address)
    try:
        yield meeting
    finally:
        meeting.close()


def _at(address: str) -> Meeting:
    place = find_place(1, 2, address)
    return join(place, deadline_s=_LOOK_S, wish=WATCHER, outlives=True)


def _only() -> Meeting:
    """Return a part in the only job of this user on this host that takes watchers."""
    found: list[Meeting] = []
    for path in sorted(folder().glob("*.sock")):
        sock = reach(path)
        if sock is None:
            continue
        with suppress(StrettoError):
            meeting = greet(
                Connection(sock),
                rank=-1,
                num_ranks=0,
                deadline_s=_LOOK_S,
                start_s=_LOOK_S,
                wish=WATCHER,
            )
            found.append(meeting)
    if len(found) == 1:
        return found[0]
    for meeting in found:
        meeting.close()
    if not found:
        raise CallError(
            "no job of this user is found here whose ranks may change; name one with "
            "--job: what `stretto launch` said, or its tcp://HOST:PORT"
        )
    raise CallError(f"{len(found)} jobs are found here; name one with --job")
