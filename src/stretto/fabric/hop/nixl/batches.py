"""What waits to go to a peer by one lane: puts, and the words that announce them.

NIXL orders nothing between requests, but a notification comes after its own request's
data. So the puts of a lane and the signals that follow them are one request, with the
signals as its notification; and of each lane one request is under way at a time. What
is put meanwhile goes together with the next. A signal that follows no put brings the
words beside it as data: a request has an end, and a notification alone has none.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

_SIGNAL = struct.Struct("=6q")
MOST_PIECES, MOST_SIGNALS = 256, 64


class BatchedPut(NamedTuple):
    """A put: registered memory here, an offset there; and what is given back after."""

    source: int
    offset: int
    nbytes: int
    slot: int = -1
    """The slot of ours that holds a copy."""
    registered: Any = None


class Batch:
    """What goes as one request."""

    def __init__(self) -> None:
        self.pieces: list[BatchedPut] = []
        self.signals: list[tuple[int, ...]] = []

    def __bool__(self) -> bool:
        """Return whether there is anything."""
        return bool(self.pieces or self.signals)

    @property
    def is_full(self) -> bool:
        """Return whether more had better wait."""
        full = len(self.pieces) >= MOST_PIECES
        return full or len(self.signals) >= MOST_SIGNALS


class Lane:
    """What a lane collects, and what of it is under way."""

    def __init__(self, peer: int) -> None:
        self.peer = peer
        self.next = Batch()
        self.flying: Batch | None = None
        self.request: Any = None

    @property
    def pieces(self) -> list[BatchedPut]:
        """Return the puts that were begun, and those that wait."""
        return [*(self.flying.pieces if self.flying else ()), *self.next.pieces]


def pack(token: bytes, signals: Sequence[Sequence[int]]) -> bytes:
    """Return the notification that raises words: offset value side word word word."""
    return token + b"".join(_SIGNAL.pack(*one) for one in signals)


def unpack(token: bytes, said: bytes) -> Iterator[tuple[int, ...]] | None:
    """Return the signals of a notification; None where it is none of ours."""
    body = said[len(token) :]
    if not said.startswith(token) or len(body) % _SIGNAL.size:
        return None
    return _SIGNAL.iter_unpack(body)
