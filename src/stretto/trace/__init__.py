"""What happened when: the only clock, recordings of calls and steps, their file."""

from stretto.trace.chrome import chrome_json, write_chrome
from stretto.trace.clock import MONOTONIC, Clock, MonotonicClock, VirtualClock
from stretto.trace.events import KINDS, Event
from stretto.trace.file import SUFFIX, TraceFile, read, write
from stretto.trace.merge import merge, read_all
from stretto.trace.recorder import Recorder, RecorderStatistics
from stretto.trace.tables import (
    CALL,
    NOBODY,
    STATES,
    STEP,
    STEP_KINDS,
    UNKNOWN_NS,
    CallKind,
    Comm,
    Dropped,
    RankInfo,
    Recording,
    Run,
)

__all__ = [
    "CALL",
    "KINDS",
    "MONOTONIC",
    "NOBODY",
    "STATES",
    "STEP",
    "STEP_KINDS",
    "SUFFIX",
    "UNKNOWN_NS",
    "CallKind",
    "Clock",
    "Comm",
    "Dropped",
    "Event",
    "MonotonicClock",
    "RankInfo",
    "Recorder",
    "RecorderStatistics",
    "Recording",
    "Run",
    "TraceFile",
    "VirtualClock",
    "chrome_json",
    "merge",
    "read",
    "read_all",
    "write",
    "write_chrome",
]
