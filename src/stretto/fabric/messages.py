"""What members of a world and its hub say of who is there."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

RANK, STANDBY, WATCHER = "rank", "standby", "watcher"
"""What a member wishes to be: a rank from the start, one if need be, or none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """The root of what can be said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello(Message):
    """A member comes. With it travels a pidfd of its process, where there are any."""

    identity: str
    """Random, and stable for its life: ranks change, this does not."""
    wish: str = RANK
    rank: int
    """Which it wishes to be at the start; -1 for who does not wish to be one."""
    num_ranks: int
    pid: int
    host: str
    version: str
    start_s: float
    """How long it still waits for the others to come."""
    within_s: float
    """How long it waits in all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Welcome(Message):
    """A generation begins: its ranks, in order. The others here have none in it.

    With it travel pidfds of the ranks that are `watched`.
    """

    generation: int
    """The first is larger than any of an earlier meeting of this name on this host;
    each that follows is larger by one."""
    identities: tuple[str, ...]
    pids: tuple[int, ...]
    home: str
    """The identity of the member that hosts the hub; nothing when it is the parent."""
    hosts: tuple[int, ...]
    """The host of each rank, numbered as they come; empty: all are on one."""
    names: tuple[str, ...]
    """What people call these hosts."""
    watched: tuple[int, ...]
    standbys: tuple[str, ...] = ()
    """Who is here and may become a rank."""
    is_fresh: bool = False
    """Whether groups of earlier generations end, also those whose members stay."""
    stays_open: bool = False
    """Whether members may still come, and generations follow."""
    since: int = 0
    """The number of the world's first generation."""
    facts: dict[str, Any] = field(default_factory=dict, hash=False)
    """By identity, what members have said of themselves last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Came(Message):
    """A member came that may become a rank."""

    identity: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost(Message):
    """A member died or failed; `how` continues a sentence that names it."""

    identity: str
    how: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Departed(Message):
    """A member left in order."""

    identity: str
    error: str = ""
    """With the text and the blamed: the fault after which it left, if there was one."""
    text: str = ""
    blamed: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Say(Message):
    """What a member says of itself, for all who are here or come; the last counts."""

    identity: str
    said: dict[str, Any] = field(hash=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Errand(Message):
    """A member asks others for something; who is concerned sees to it, or does not."""

    verb: str
    about: tuple[str, ...]
    """Identities."""
    said: dict[str, Any] = field(hash=False)
    sender: str = ""
    """Who asks: the hub fills it in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave(Message):
    """A member goes: orderly, or (with words for `failure`) because it failed."""

    failure: str
    error: str = ""
    """With the text and the blamed: the fault that it has heard of, if it has."""
    text: str = ""
    blamed: tuple[int, ...] = ()

    def told_of(self, identity: str) -> Lost | Departed:
        """Return what others are told of it."""
        if self.failure:
            return Lost(identity=identity, how=self.failure)
        return Departed(
            identity=identity, error=self.error, text=self.text, blamed=self.blamed
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Propose(Message):
    """A member wants these to be the ranks of the next generation, in this order."""

    generation: int
    identities: tuple[str, ...]
    is_fresh: bool
    timeout_s: float
    """How long all of them may take to prepare themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepare(Message):
    """The hub asks who shall be in the next generation to prepare itself.

    The others hear of it.
    """

    generation: int
    attempt: int
    """Counts what was proposed; an answer to another one is no answer."""
    identities: tuple[str, ...]
    is_fresh: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready(Message):
    """A member agrees, or cannot and says why. A pidfd may go with it."""

    attempt: int
    failure: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Abandoned(Message):
    """A proposal came to nothing, and the generation that there is goes on."""

    generation: int
    identities: tuple[str, ...]
    error: str
    text: str
    blamed: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict(Message):
    """A fault ends a group (or, with no group named, all of them)."""

    group: str
    error: str
    text: str
    blamed: tuple[int, ...]
