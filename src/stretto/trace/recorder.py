"""A ring buffer of events: recording is always on, and the last ones are kept."""

from __future__ import annotations

from collections import deque

from stretto.trace.events import Event


class Recorder:
    """Keeps the newest `capacity` events."""

    __slots__ = ("_events",)

    def __init__(self, capacity: int = 1 << 16) -> None:
        if capacity < 1:
            raise ValueError(f"capacity={capacity}; want at least 1")
        self._events: deque[Event] = deque(maxlen=capacity)

    def record(self, event: Event) -> None:
        """Keep an event; the oldest one makes room when the recorder is full."""
        self._events.append(event)

    def events(self) -> tuple[Event, ...]:
        """Return what is held, the oldest first."""
        return tuple(self._events)
