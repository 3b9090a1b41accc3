"""Collect one part from each member of a group, in calls that must match; no I/O."""

from __future__ import annotations

from dataclasses import dataclass, field

from stretto.fabric.faults import Fault, name_ranks
from stretto.fabric.meeting.messages import Offer, Result
from stretto.fabric.wire import Descriptor


@dataclass(slots=True, kw_only=True)
class Gathering:
    """The exchange that a group is in; each group has at most one at a time."""

    group: str
    generation: int
    """In which the members' ranks are meant."""
    members: tuple[int, ...]
    fate: str
    """The group that breaks with this exchange, and its members."""
    fate_members: tuple[int, ...]
    deadline: float
    survives: bool = False
    """Whether who is gone is not waited for."""
    parts: dict[int, tuple[Offer, tuple[Descriptor, ...]]] = field(default_factory=dict)

    def add(
        self, rank: int, offer: Offer, descriptors: tuple[Descriptor, ...], now: float
    ) -> Fault | None:
        """Take a member's part; a part that does not fit the others is a fault."""
        others = [o for o, _ in self.parts.values()]
        here = self.members, self.fate, self.fate_members
        same = here == (offer.members, offer.fate, offer.fate_members)
        if not same or any(o.tag != offer.tag for o in others):
            return self._mismatch(rank, offer)
        if rank in self.parts:
            text = f"rank {rank} came twice to {offer.tag} of {self.group}"
            return Fault(error="CollectiveMismatch", text=text, blamed=(rank,))
        self.deadline = min(self.deadline, now + offer.timeout_s)
        self.parts[rank] = (offer, descriptors)
        return None

    def _mismatch(self, rank: int, offer: Offer) -> Fault:
        met = sorted(self.parts)
        tag = self.parts[met[0]][0].tag if met else "nothing"
        text = (
            f"rank {rank} came to {offer.tag} of {self.group}{list(offer.members)}, "
            f"while {name_ranks(met)} came to {tag} of "
            f"{self.group}{list(self.members)}. "
            "Every rank must make the same calls in the same order"
        )
        return Fault(error="CollectiveMismatch", text=text, blamed=(rank,))

    @property
    def missing(self) -> list[int]:
        """The members that have not come."""
        return sorted(set(self.members) - self.parts.keys())

    @property
    def tag(self) -> str:
        """What the exchange is about."""
        return next(iter(self.parts.values()))[0].tag

    def result(self) -> tuple[Result, tuple[Descriptor, ...]]:
        """Return what every member is told, once all have come."""
        parts = [self.parts.get(rank) for rank in self.members]
        message = Result(
            group=self.group,
            tag=self.tag,
            payloads=[part and part[0].payload for part in parts],
            counts=tuple(len(part[1]) if part else 0 for part in parts),
        )
        return message, tuple(d for part in parts if part for d in part[1])

    def timeout(self) -> Fault:
        """Return the fault that names the missing."""
        text = (
            f"{name_ranks(self.missing)} did not come in time to {self.tag} of "
            f"{self.group}, where {name_ranks(self.parts)} waited"
        )
        blamed = tuple(self.missing)
        return Fault(error="CollectiveTimeout", text=text, blamed=blamed)
