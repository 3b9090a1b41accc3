"""What the parts of an engine ask of one another, so that none imports its owner."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any, Protocol

__all__ = ["Ended", "EngineLike", "LoopLike", "PeerLike", "Taker"]


class Ended(Protocol):
    """Something that has ended, or will."""

    def done(self) -> bool:
        """Return whether it has."""

    def event(self) -> threading.Event:
        """Return what is set when it does."""


class Taker(Protocol):
    """Who takes what comes by a link."""

    link: Any

    def take(self, record: tuple[int, ...]) -> None:
        """Deal with a record; whatever it raises ends the connection."""

    @property
    def waits(self) -> bool:
        """Return whether something waits for room."""

    def pump(self) -> None:
        """Go on with what waited for room."""

    def lose(self, why: str) -> None:
        """End the connection."""


class LoopLike(Protocol):
    """An engine's thread."""

    selector: Any

    @property
    def is_here(self) -> bool:
        """Return whether this is its thread."""

    def check(self) -> None:
        """Raise in a child that was forked from the engine's process."""

    @property
    def wake_fd(self) -> int:
        """Return the descriptor by which it is woken."""

    def wait_for(self, pending: Ended, until: float | None) -> bool:
        """Wait until something has ended; return whether it has."""

    def drain(self) -> bool:
        """Deal with what has come."""

    def wake(self) -> None:
        """Have the thread look around."""

    def call(self, task: Callable[[], None]) -> None:
        """Have the thread call something soon."""

    def at(self, when: float, task: Callable[[], None]) -> None:
        """Have the thread call something at a time."""

    def move(self, task: Callable[[], None]) -> None:
        """Have another thread call what takes long."""

    def apart(self, task: Callable[[], None]) -> None:
        """Have a thread of its own call what waits for others."""

    @property
    def attention(self) -> int:
        """Return the address of the words that say whether others look."""

    def heat(self) -> None:
        """Have peers wake nobody for a while."""

    @property
    def can_look(self) -> bool:
        """Return whether there is something to look at, and a core to do it."""

    @property
    def look_at(self) -> int:
        """Return the address of what is looked at."""

    def glance(self, look: int, number: int) -> int:
        """Look for a notification for a moment; 1: it came, and is taken."""

    def look(self, number: int) -> int:
        """Look for records for a short while."""

    def spin_for(self, number: int, tag: bytes, counts: Any) -> bool:
        """Look for a notification for a short while."""


class PeerLike(Protocol):
    """Another engine, as transfers see it."""

    name: str
    identity: str
    lost: str
    pid: int
    link: Any
    board: Any
    reaches: bool
    why_not: str
    address: str

    @property
    def engine(self) -> EngineLike:
        """Return whose peer it is."""

    @property
    def whereabouts(self) -> str:
        """Return where it is, for people."""

    @property
    def is_far(self) -> bool:
        """Return whether a hop lies between."""

    @property
    def is_self(self) -> bool:
        """Return whether it lives in this process."""

    @property
    def names(self) -> Sequence[str]:
        """Return the names of its memory."""

    @property
    def arenas(self) -> Sequence[Any]:
        """Return its arenas, mapped here."""

    def __getitem__(self, name: str) -> Any:
        """Return its memory of a name."""

    @property
    def begun(self) -> set[Any]:
        """Return the transfers that this process does alone."""

    def is_dead(self) -> bool:
        """Return whether its process is known to have ended."""

    def take_mark(self) -> int | None:
        """Return a mark that nobody uses."""

    def give_mark(self, mark: int) -> None:
        """Let a mark be used again."""

    def number(self) -> int:
        """Return a number for a transfer by stages."""

    def begin(self, transfer: Any, body: bytes, work: Any, number: int) -> None:
        """Ask for a transfer by stages."""

    def keep(self, header: dict[str, Any], pages: Any) -> Any:
        """Have the peer keep a transfer ready."""

    @property
    def quick(self) -> MutableMapping[int, Any]:
        """Return who waits for answers, by number."""

    def drop(self, number: int) -> None:
        """Say that a transfer is not wanted any more."""

    def unkeep(self, kept: int) -> None:
        """Say that a prepared transfer need not be kept any more."""

    def refuse(self, number: int, why: str) -> None:
        """Let a transfer fail on both sides."""

    def give_up(self) -> None:
        """Raise when it is of no use to wait for it."""

    def post(self, record: bytes) -> None:
        """Post a record."""

    def say(self, kind: Any, *words: int) -> None:
        """Post a record of words."""


class EngineLike(Protocol):
    """An engine, as its parts see it."""

    name: str
    job: str
    hop: str
    lanes: int
    rails: tuple[str, ...]
    lock: Any
    counts: Any
    board: Any
    writing: Any
    """Under which epochs a GPU writes."""
    witness: Any
    known: Any
    """The peers, by identity, and who is on the way."""

    @property
    def loop(self) -> LoopLike:
        """Return its thread."""

    @property
    def is_inherited(self) -> bool:
        """Return whether it is that of the process that this one was forked from."""

    def secret(self) -> bytes:
        """Return the job's secret."""

    def start(self, src: Any, dst: Any, **how: Any) -> Any:
        """Begin a transfer."""

    def prepare(self, src: Any, dst: Any, **how: Any) -> Any:
        """Prepare a transfer."""

    def asked(
        self, peer: Any, number: int, header: Mapping[str, Any], pages: Any
    ) -> Any:
        """Return what does a transfer that a peer asks for."""

    def explain(self, peer: Any) -> str:
        """Return which way bytes go to a peer."""

    def welcome(self, peer: Any) -> None:
        """Know a peer."""

    def drop(self, peer: Any) -> None:
        """Know a peer no more."""

    def writers(self) -> Sequence[PeerLike]:
        """Return the peers that may write to memory here."""

    def mapping_of(self, region: Any, address: int) -> tuple[int, int]:
        """Return the arena in which memory lies."""

    def gpu_ring(self, peer: Any) -> Any:
        """Return pinned memory for what goes between a GPU here and a peer."""

    @property
    def has_gpu(self) -> bool:
        """Return whether a GPU is used here."""

    def renew(self, slot: int, epoch: int, timeout: float) -> int:
        """Give a lease a new epoch."""
