"""What happened when: the only clock, recordings of calls and steps, their file."""

from stretto.trace import rings
from stretto.trace.clock import MONOTONIC, WALL, Clock, MonotonicClock, WallClock
from stretto.trace.collector import EXPLAINED, Taken
from stretto.trace.events import KINDS, Event
from stretto.trace.file import SUFFIX, TraceFile, read, write
from stretto.trace.merge import merge, read_all
from stretto.trace.process import (
    MARKS,
    WAITS,
    Seen,
    add_source,
    blocked,
    close_ring,
    collects,
    observe,
    open_ring,
    record,
    wants_steps,
)
from stretto.trace.recorder import Recorder
from stretto.trace.rings import Ring
from stretto.trace.snapshot import snapshot, snapshot_of_pid
from stretto.trace.tables import (
    CALL,
    NOBODY,
    SAMPLE,
    STATES,
    STEP,
    STEP_KINDS,
    UNKNOWN_NS,
    CallKind,
    CodeLine,
    Comm,
    Dropped,
    LaneWait,
    RankInfo,
    Recording,
    Run,
)

__all__ = [
    "CALL",
    "EXPLAINED",
    "KINDS",
    "MARKS",
    "MONOTONIC",
    "NOBODY",
    "SAMPLE",
    "STATES",
    "STEP",
    "STEP_KINDS",
    "SUFFIX",
    "UNKNOWN_NS",
    "WAITS",
    "WALL",
    "CallKind",
    "Clock",
    "CodeLine",
    "Comm",
    "Dropped",
    "Event",
    "LaneWait",
    "MonotonicClock",
    "RankInfo",
    "Recorder",
    "Recording",
    "Ring",
    "Run",
    "Seen",
    "Taken",
    "TraceFile",
    "WallClock",
    "add_source",
    "blocked",
    "close_ring",
    "collects",
    "merge",
    "observe",
    "open_ring",
    "read",
    "read_all",
    "record",
    "rings",
    "snapshot",
    "snapshot_of_pid",
    "wants_steps",
    "write",
]
