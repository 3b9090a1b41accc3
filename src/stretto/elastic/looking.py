"""What a watcher of a job's world sees of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from stretto.errors import CallError
from stretto.fabric.meeting.meeting import Meeting
from stretto.runtime.calls.spares import state_of


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
    state: str = ""
    """Whether one that stands by can take a place, and why it cannot."""
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
        JobMember(
            identity=identity,
            rank=-1,
            said=facts.get(identity, {}),
            state=state_of(identity, welcome.identities, facts),
        )
        for identity in standing.standbys
    ]
    return JobView(
        generation=welcome.generation - welcome.since,
        members=(*ranks, *free),
        says=facts.get("", {}),
    )
