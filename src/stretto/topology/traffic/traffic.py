"""What carries bytes between ranks in virtual time: one protocol for every engine."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

from stretto.topology.routes import Route

__all__ = ["Delivery", "LinkCounts", "Parcel", "Traffic"]

What = TypeVar("What")


class Parcel(Generic[What]):
    """Bytes for a peer, or just word, and what they are."""

    __slots__ = ("at_most", "nbytes", "queue", "ready", "route", "weight", "what")

    def __init__(
        self,
        what: What,
        route: Route,
        nbytes: float,
        at_most: float = math.inf,
        weight: float = 1.0,
    ) -> None:
        self.what = what
        self.route = route
        self.nbytes = nbytes
        self.at_most = at_most
        """What the sender itself can do, in bytes a microsecond: its demand."""
        self.weight = weight
        """Its share of a full link, beside others."""
        self.ready = 0.0
        self.queue: deque[Parcel[What]] | None = None


class Delivery(NamedTuple, Generic[What]):
    """A parcel that has left, when it did, and when it arrives."""

    what: What
    left_us: float
    arrives_us: float


class LinkCounts(NamedTuple):
    """What happened on one link, as far as an engine knows such things."""

    name: str
    nbytes: float
    marks: float
    """Packets marked by ECN; of the flow engine, modelled from a fluid queue."""
    pauses: int
    drops: int
    max_queue: float
    """The most bytes that waited for the link at once."""


class Traffic(Protocol[What]):
    """Parcels on a machine's links. Time moves on in `step` alone."""

    num_transfers: int

    @property
    def link_nbytes(self) -> Sequence[float]:
        """Return the bytes that every link has carried."""

    def send(
        self, parcel: Parcel[What], *, ready_us: float, queue: object
    ) -> Delivery[What] | None:
        """Send behind what is in the queue; return the delivery if it is now known."""

    def next_us(self) -> float:
        """Return when the next thing happens; infinity when nothing does."""

    def step(self) -> Sequence[Delivery[What]]:
        """Come to the next moment and return what leaves in it."""

    def counts(self) -> Sequence[LinkCounts]:
        """Return what happened on every link so far."""
