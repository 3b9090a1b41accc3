"""Carry bytes between hosts: one protocol, one folder per carrier, found by scanning.

In: memory of this rank, and which peers are on other hosts. Out: their bytes where they
belong, and then the words that announce them. Never: anything of plans, or of who died.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from stretto.meeting.tls import VARIABLE as TLS
from stretto.meeting.tls import is_asked
from stretto.registry import Registry

__all__ = [
    "CARRIER",
    "MORE",
    "MOST_LANES",
    "Calls",
    "Carrier",
    "Hop",
    "Window",
    "chosen",
    "get",
    "names",
    "say_plain",
]


_log = logging.getLogger("stretto.hop")
CARRIER = "STRETTO_CARRIER"
MORE = 1 << 32
MOST_LANES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The memory of a rank that peers on other hosts may reach, and who it is."""

    rank: int
    num_ranks: int
    address: int
    """Where the memory begins in this process. Offsets count from there."""
    puts: tuple[int, int]
    """Offsets between which data may land."""
    words: tuple[int, int]
    """Offsets between which words may be raised."""
    secret: bytes
    """What all ranks of the job know, and nobody else."""
    towards: str = ""
    """A host that the others are reached by: it says which interface to use."""
    lanes: int = 1
    """Streams to each peer. Only what goes by one stream is in order."""
    wake: int = -1
    """A descriptor that ends a `wait`, too, when it turns readable; whoever waits reads
    it. -1: there is none."""
    rails: tuple[str, ...] = ()
    """Interfaces or addresses that lanes go by in turn; none: as routes say."""
    fields: int = 0
    """Address of the words of fields that the rank may open, see `hop.fields`."""
    num_fields: int = 0
    sources: tuple[int, int] = (0, 0)
    """Offsets between which lies what is put most often: it is registered once."""
    linger_s: float = 2.0
    """How long a close may wait until peers have taken what was begun."""


class Calls(NamedTuple):
    """Addresses of the calls, for who runs without the interpreter's lock.

    Each takes two words, the context and the address of its arguments, as words; and
    returns one. They mean what the methods of a `Hop` of these names mean.
    """

    context: int
    put: int
    """Arguments: peer, lane, source, offset, bytes. A lane plus MORE: it may wait."""
    signal: int
    """Arguments: peer, lane, offset, value, offset of the side words, three of them.

    A lane plus MORE: another signal to that peer follows at once, so this one may wait
    and go with it.
    """
    progress: int
    wait: int
    """Argument, instead of an address: microseconds."""
    busy: int
    """Argument, instead of an address: 0, or 1 + peer x lanes + lane."""


class Hop(Protocol):
    """One rank's way to its peers on other hosts, for one communicator.

    What is put by a lane has landed before its peer sees a later signal of that lane.
    Nothing else is in order. Whoever waits calls `progress`, for itself and its peers.
    """

    @property
    def calls(self) -> Calls | None:
        """Return the same as compiled functions, where they are."""

    def share(self) -> Mapping[str, Any]:
        """Return what peers must know to connect: JSON can write it."""

    def connect(
        self, shares: Sequence[Any], peers: Sequence[int], within_s: float
    ) -> None:
        """Connect with peers, by what each rank shares; each proves the secret."""

    def put(self, peer: int, lane: int, source: int, offset: int, nbytes: int) -> bool:
        """Begin to copy bytes from an address to a peer's window; False: try later.

        The source must stay as it is until it has been read: at the latest when the
        data have landed, or `busy` says that nothing is left to send.
        """

    def signal(
        self, peer: int, lane: int, offset: int, value: int, side: int,
        words: Sequence[int],
    ) -> bool:  # fmt: skip
        """Raise a word of a peer to a value, after what this lane put there before.

        Three words are stored at `side` before. False: try later.
        """

    def progress(self) -> int:
        """Send and receive what can be, without waiting; return whether any was."""

    def wait(self, microseconds: int) -> int:
        """Sleep until something comes, at most so long."""

    def busy(self) -> int:
        """Return whether sources of puts are still to be read."""

    @property
    def descriptors(self) -> Sequence[int]:
        """Return what turns readable when something comes, for selectors."""

    @property
    def is_armed(self) -> bool:
        """Return whether descriptors turn readable by themselves, without `arm`."""

    def arm(self) -> bool:
        """Have descriptors turn readable from now on; False: something is there."""

    @property
    def lanes(self) -> int:
        """Return how many streams there are to each peer."""

    @property
    def has_fields(self) -> bool:
        """Return whether peers can put to fields."""

    @property
    def has_ended(self) -> bool:
        """Return whether a connection has ended."""

    def faults(self) -> Mapping[int, str]:
        """Return the peers whose connection has ended, and how."""

    def close(self) -> None:
        """End all connections."""


def say_plain(carrier: str, rank: int) -> None:
    """Warn of a carrier that encrypts nothing where TLS is asked for; rank 0 does."""
    if is_asked() and rank == 0:
        _log.warning(
            "%s asks for TLS, and carrier %s sends in plain text: only the meeting is "
            "encrypted; the carrier that encrypts is tcp", TLS, carrier,
        )  # fmt: skip


class Carrier(Protocol):
    """What a folder here offers, or an entry point of the group `stretto.carriers`."""

    def open_hop(self, window: Window, *, compiled: bool | None = None) -> Hop:
        """Open a rank's way to its peers; `compiled` where it must be so, or not."""

    def missing(self) -> str:
        """Return why it cannot be used here, or nothing; then it is ready at once."""

    def doctor(self) -> Mapping[str, str]:
        """Return what this machine has for it, and what is missing, by subject."""


_carriers: Registry[Carrier] = Registry(
    "carrier", __name__, group="stretto.carriers", folders=True
)


def names() -> tuple[str, ...]:
    """Return the names of all carriers, sorted."""
    return _carriers.names()


def chosen(environment: Mapping[str, str] | None = None) -> str:
    """Return the carrier that users ask for, or tcp: it is always there."""
    env = os.environ if environment is None else environment
    name = env.get(CARRIER) or "tcp"
    get(name)
    return name


def get(name: str) -> Carrier:
    """Return a carrier."""
    return _carriers.get(name)
