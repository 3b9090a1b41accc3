"""Who is there, as one member sees it: what it hears in, what changed out; no I/O.

The hub's word counts: generations, losses and verdicts come from it, in one order. A
process that ends without the hub's word (because the hub itself has ended, or hangs) is
taken for lost after a short grace. A hub that ends while its host lives ends the world.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, assert_never

from stretto.fabric.faults import Fault
from stretto.fabric.generations import Generations, said_fault
from stretto.fabric.messages import (
    Abandoned,
    Came,
    Departed,
    Errand,
    Lost,
    Prepare,
    Say,
    Welcome,
)

GRACE_S = 0.2
"""How long the hub may take to say why a process ended."""
ORPHAN_GRACE_S = 0.05
"""How long we look for the dead when the hub has ended."""
_ENDED = "died: its process ended"

News = Welcome | Prepare | Abandoned | Came | Lost | Departed | Say | Errand
"""What the hub tells of who is there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """The hub told something."""

    message: News


@dataclass(frozen=True, slots=True, kw_only=True)
class HubEnded:
    """The connection to the hub ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A member's process ended."""

    identity: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """Time passed."""


Event = Heard | HubEnded | Ended | Tick
Change = News | Fault
"""What is new to this member; a fault ends its world."""


@dataclass(slots=True, kw_only=True)
class WorldView:
    """One member's view of its world; `on` takes an event and returns what changed."""

    welcome: Welcome
    """The generation that there is."""
    has_pidfds: bool = True
    """Whether `Ended` will come when the process that hosts the hub ends."""
    generations: Generations = field(default_factory=Generations)
    """All that it has heard of."""
    gone: dict[str, str] = field(default_factory=dict)
    """How members were lost; nothing for who left in order."""
    after: dict[str, Fault] = field(default_factory=dict)
    """The faults after which members left in order."""
    facts: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What members say of themselves."""
    hub_ended: bool = False
    _standbys: dict[str, None] = field(default_factory=dict)
    _suspects: dict[str, float] = field(default_factory=dict)
    _orphan_until: float | None = None

    def __post_init__(self) -> None:
        self._begin(self.welcome)

    @property
    def next_deadline(self) -> float | None:
        """When the next `Tick` is due."""
        due = list(self._suspects.values())
        if self._orphan_until is not None:
            due.append(self._orphan_until)
        return min(due, default=None)

    @property
    def standbys(self) -> tuple[str, ...]:
        """Who is here and may become a rank."""
        return tuple(self._standbys)

    def rank_of(self, identity: str) -> int:
        """Return the rank that a member has, or had last; -1 for one that never had."""
        for roster in reversed(self.generations.rosters.values()):
            if identity in roster:
                return roster.index(identity)
        return -1

    def on(self, event: Event, now: float) -> list[Change]:
        """Take an event; return what changed."""
        match event:
            case Heard(message=message):
                return self._hear(message)
            case HubEnded():
                return self._orphan(now)
            case Ended(identity=identity):
                return self._suspect(identity, now)
            case Tick():
                return self._convict(now) + self._give_up(now)
            case _:
                assert_never(event)

    def _hear(self, message: News) -> list[Change]:
        match message:
            case Welcome(generation=generation):
                if generation <= self.welcome.generation:
                    return []  # generations only grow
                self._begin(message)
            case Came(identity=identity):
                self._standbys[identity] = None
            case Say(identity=identity, said=said):
                self.facts[identity] = said
            case Prepare() | Abandoned() | Errand():
                pass
            case Lost(identity=identity, how=how):
                return self._lose(identity, how)
            case Departed(identity=identity):
                if message.error:
                    self.after.setdefault(identity, said_fault(message))
                return self._lose(identity, "")
            case _:
                assert_never(message)
        return [message]

    def _begin(self, welcome: Welcome) -> None:
        self.welcome, order = welcome, welcome.identities
        number, is_fresh = welcome.generation, welcome.is_fresh
        self.generations.begin(number, order, is_fresh=is_fresh)
        self._standbys = dict.fromkeys(welcome.standbys)
        self.facts = dict(welcome.facts)

    def _suspect(self, identity: str, now: float) -> list[Change]:
        if identity in self.gone:
            return []
        if self.hub_ended:  # there is nobody to say more
            self._orphan_until = None
            return self._lose(identity, _ENDED)
        self._suspects.setdefault(identity, now + GRACE_S)
        return []

    def _orphan(self, now: float) -> list[Change]:
        self.hub_ended = True
        if self.gone.get(self.welcome.home) == "":
            return []
        if self._suspects:
            return self._convict(max(self._suspects.values()))
        self._orphan_until = now + ORPHAN_GRACE_S
        return []

    def _convict(self, now: float) -> list[Change]:
        due = [i for i, until in self._suspects.items() if now >= until]
        return [c for i in sorted(due, key=self.rank_of) for c in self._lose(i, _ENDED)]

    def _give_up(self, now: float) -> list[Change]:
        if self._orphan_until is None or now < self._orphan_until:
            return []
        self._orphan_until = None
        home = self.welcome.home
        if home and not self.has_pidfds:
            return self._lose(home, "died: its connection ended")
        who = f"rank {self.rank_of(home)}" if home else "the parent"
        text = f"the rendezvous hosted by {who} ended its connection to us"
        return [Fault(error="RendezvousError", text=text)]

    def _lose(self, identity: str, how: str) -> list[Change]:
        self._suspects.pop(identity, None)
        self._standbys.pop(identity, None)
        self.facts.pop(identity, None)
        if identity in self.gone:
            return []
        self.gone[identity] = how
        lost = Lost(identity=identity, how=how)
        return [lost if how else Departed(identity=identity)]
