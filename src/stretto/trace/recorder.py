"""A ring buffer of events: recording is always on, and the last ones are kept."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from stretto.trace.events import Event

__all__ = ["Recorder", "RecorderStatistics"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecorderStatistics:
    """How full a recorder is, and what it forgot."""

    capacity: int
    held: int
    dropped: int


class Recorder:
    """Keeps the newest `capacity` events and counts those it let go."""

    __slots__ = ("_events", "_recorded")

    def __init__(self, capacity: int = 1 << 16) -> None:
        if capacity < 1:
            raise ValueError(f"capacity={capacity}; want at least 1")
        self._events: deque[Event] = deque(maxlen=capacity)
        self._recorded = 0

    def record(self, event: Event) -> None:
        """Keep an event; the oldest one makes room when the recorder is full."""
        self._events.append(event)
        self._recorded += 1

    def events(self) -> tuple[Event, ...]:
        """Return what is held, the oldest first."""
        return tuple(self._events)

    def clear(self) -> None:
        """Forget everything, also the count of what was dropped."""
        self._events.clear()
        self._recorded = 0

    def statistics(self) -> RecorderStatistics:
        """Return how full the recorder is."""
        assert self._events.maxlen is not None  # the constructor gave one
        held = len(self._events)
        return RecorderStatistics(
            capacity=self._events.maxlen, held=held, dropped=self._recorded - held
        )
