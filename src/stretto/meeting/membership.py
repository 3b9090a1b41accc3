"""What one rank knows of the others: events in, broken groups out; no I/O.

The hub's word counts. A process that ends without the hub's word (because the hub
itself has ended, or hangs) is taken for lost after a short grace.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import assert_never

from stretto.meeting.faults import Fault, left_fault, lost_fault
from stretto.meeting.groups import Group
from stretto.meeting.messages import Departed, Lost, Verdict

GRACE_S = 0.2
"""How long the hub may take to say why a process ended."""
ORPHAN_GRACE_S = 0.05
"""How long we look for the dead when the hub has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """The hub told something."""

    message: Lost | Departed | Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class HubEnded:
    """The connection to the hub ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A rank's process ended."""

    rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """Time passed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Break:
    """A group cannot go on."""

    group: str
    fault: Fault


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A rank left in order."""

    rank: int


Event = Heard | HubEnded | Ended | Tick
Action = Break | Mark


@dataclass(slots=True, kw_only=True)
class Membership:
    """One rank's view; `on` takes an event and returns what changed."""

    host_rank: int
    """The rank that hosts the hub; -1 when it is the spawning parent."""
    has_pidfds: bool = True
    """Whether `Ended` will come for every process that ends."""
    groups: dict[str, Group] = field(default_factory=dict)
    broken: dict[str, Fault] = field(default_factory=dict)
    lost: dict[int, str] = field(default_factory=dict)
    departed: set[int] = field(default_factory=set)
    _suspects: dict[int, float] = field(default_factory=dict)
    _orphan_until: float | None = None
    _hub_ended: bool = False

    @property
    def next_deadline(self) -> float | None:
        """When the next `Tick` is due."""
        due = list(self._suspects.values())
        if self._orphan_until is not None:
            due.append(self._orphan_until)
        return min(due, default=None)

    def hub_fault(self, what: str) -> Fault | None:
        """Return why nothing can be exchanged any more, once that is known.

        A group without the hub's rank outlives it, as far as calls that are known go.
        """
        host = self.host_rank
        if not self._hub_ended or host < 0:
            return None
        if host in self.lost:
            fault = lost_fault(host, self.lost[host])
        elif host in self.departed:
            fault = left_fault(host, what)
        else:
            return None
        text = f"{fault.text}; it hosted the rendezvous, which {what} needs"
        return replace(fault, text=text)

    def join(self, group: Group) -> Fault | None:
        """Watch a group from now on; return the fault it was born with, if any."""
        self.groups[group.name] = group
        fate = group.fate
        if fate.name in self.broken:
            self.broken.setdefault(group.name, self.broken[fate.name])
        for rank, how in self.lost.items():
            if rank in fate.members:
                fault = lost_fault(rank, how, fate.name_ranks([rank]))
                self.broken.setdefault(group.name, fault)
        return self.broken.get(group.name)

    def on(self, event: Event, now: float) -> list[Action]:
        """Take an event; return what changed."""
        match event:
            case Heard(message=message):
                return self._hear(message)
            case HubEnded():
                return self._orphan(now)
            case Ended(rank=rank):
                return self._suspect(rank, now)
            case Tick():
                return self._convict(now) + self._give_up(now)
            case _:
                assert_never(event)

    def _hear(self, message: Lost | Departed | Verdict) -> list[Action]:
        match message:
            case Lost(rank=rank, how=how):
                return self._lose(rank, how)
            case Departed(rank=rank):
                self.departed.add(rank)
                self._suspects.pop(rank, None)
                return [Mark(rank=rank)]
            case Verdict(group=group, error=error, text=text, blamed=blamed):
                fault = Fault(error=error, text=text, blamed=blamed)
                return self._break([group] if group else None, fault)
            case _:
                assert_never(message)

    def _suspect(self, rank: int, now: float) -> list[Action]:
        if rank in self.lost or rank in self.departed:
            return []
        if self._hub_ended:  # there is nobody to say more
            self._orphan_until = None
            return self._lose(rank, "died: its process ended")
        self._suspects.setdefault(rank, now + GRACE_S)
        return []

    def _orphan(self, now: float) -> list[Action]:
        self._hub_ended = True
        if self.host_rank in self.departed:
            return []
        if self._suspects:
            return self._convict(max(self._suspects.values()))
        self._orphan_until = now + ORPHAN_GRACE_S
        return []

    def _convict(self, now: float) -> list[Action]:
        due = sorted(rank for rank, until in self._suspects.items() if now >= until)
        return [a for rank in due for a in self._lose(rank, "died: its process ended")]

    def _give_up(self, now: float) -> list[Action]:
        if self._orphan_until is None or now < self._orphan_until:
            return []
        self._orphan_until = None
        if self.host_rank >= 0 and not self.has_pidfds:
            return self._lose(self.host_rank, "died: its connection ended")
        who = f"rank {self.host_rank}" if self.host_rank >= 0 else "the parent"
        text = f"the rendezvous hosted by {who} ended its connection to us"
        return self._break(None, Fault(error="RendezvousError", text=text))

    def _lose(self, rank: int, how: str) -> list[Action]:
        self._suspects.pop(rank, None)
        if rank in self.lost or rank in self.departed:
            return []
        self.lost[rank] = how
        actions: list[Action] = []
        for group in list(self.groups.values()):
            if rank in group.fate.members:
                fault = lost_fault(rank, how, group.fate.name_ranks([rank]))
                actions += self._break([group.name], fault)
        return actions

    def _break(self, names: list[str] | None, fault: Fault) -> list[Action]:
        chosen = list(self.groups) if names is None else list(names)
        chosen += [g.name for g in self.groups.values() if g.fate.name in chosen]
        fresh = [
            name
            for name in dict.fromkeys(chosen)
            if name in self.groups and name not in self.broken
        ]
        self.broken.update(dict.fromkeys(fresh, fault))
        return [Break(group=name, fault=fault) for name in fresh]
