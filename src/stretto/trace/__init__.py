"""What happened when: event schema, the only clock, a ring buffer, exporters."""

from stretto.trace.chrome import chrome_json, write_chrome
from stretto.trace.clock import MONOTONIC, Clock, MonotonicClock, VirtualClock
from stretto.trace.events import KINDS, Event
from stretto.trace.recorder import Recorder, RecorderStatistics

__all__ = [
    "KINDS",
    "MONOTONIC",
    "Clock",
    "Event",
    "MonotonicClock",
    "Recorder",
    "RecorderStatistics",
    "VirtualClock",
    "chrome_json",
    "write_chrome",
]
