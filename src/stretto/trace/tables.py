"""What a recording holds: calls, the steps inside them, and who and what they were.

Times are whole nanoseconds. In the file of one rank they are on its host's clock; in a
merged recording all are on that of the first host, and every rank says how far it was
moved, and by how much that may be wrong.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Table: TypeAlias = NDArray[Any]
"""A structured array, of `CALL` or of `STEP`."""

NOBODY = -1
"""The peer of a step that has none, or several."""
UNKNOWN_NS = -1
"""The error of a clock that nothing bounds."""

STATES = ("running", "done", "failed", "enqueued")
"""How a call stands: its `state` is an index. One that runs has no end: it is 0. One
that was enqueued on a GPU is its business: nobody says here when it runs."""

STEP_KINDS = (
    "copy",
    "reduce",
    "put",
    "get",
    "put_packets",
    "read_packets",
    "reduce_packets",
    "signal",
    "wait",
    "hop_put",
    "hop_signal",
    "kernel",
    "transfer",
)
"""What a step does: its `kind` is an index. Those of plans by their names; `hop_...` go
to another host; a `kernel` is all of a call on a GPU, as one block saw it; a `transfer`
is data on their way, as the simulator knows it."""

CALL = np.dtype(
    [
        ("rank", "<i4"),  # of the world
        ("comm", "<i4"),  # index into Recording.comms
        (
            "seq",
            "<i8",
        ),  # its number in the communicator, from 1
        ("kind", "<i4"),  # index into Recording.kinds
        ("state", "<i4"),  # index into STATES
        ("nbytes", "<i8"),  # the longest vector that a rank holds, as benchmarks count
        ("stream", "<i8"),  # the thread, or the GPU's stream, that it was called on
        ("enqueue", "<i8"),  # when it was asked for
        ("start", "<i8"),  # when it began to run; on a GPU 0: nobody looked
        ("end", "<i8"),  # when it was done; 0: not, or nobody looked
    ]
)
"""A call of a collective or a transfer, by one rank."""

STEP = np.dtype(
    [
        ("rank", "<i4"),
        ("comm", "<i4"),
        ("seq", "<i8"),  # of the call that it is in
        ("lane", "<i2"),
        ("kind", "<i2"),  # index into STEP_KINDS
        ("step", "<i4"),  # its place in the plan's lane; -1: all of them
        ("peer", "<i4"),  # the communicator's rank; NOBODY
        ("tile", "<i4"),  # which slice of the call; on a GPU also which block
        ("begin", "<i8"),
        ("wait", "<i8"),  # how long it waited for its peer, from `begin` on
        ("end", "<i8"),
        ("nbytes", "<i8"),  # what it moved, in this tile; 0: signals, waits
    ]
)
"""A step of a plan, by one lane of one rank, in one tile."""


SAMPLE = np.dtype(
    [
        ("rank", "<i4"),
        ("place", "<i4"),  # index into Recording.places; -1: not known
        ("time", "<i8"),  # when it was taken
        ("period", "<i8"),  # since the one before: the others are of that time
        ("main", "<i8"),  # processor time of the main thread
        ("cpu", "<i8"),  # of all threads of the process
        ("delayed", "<i8"),  # the main thread was ready, and others had the processors
        ("children", "<i8"),  # of its child processes: loaders of data, say
        ("memory", "<i8"),  # bytes of memory that it had, at that time
    ]
)
"""What a rank did with its time between two moments, some fifty in a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeLine:
    """Where in its program the main thread of a rank was."""

    text: str
    """The file, the line and the code that stands there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankInfo:
    """Who a rank was, and what its clock said."""

    rank: int
    """Of the world."""
    num_ranks: int = 0
    host: str = ""
    """Ranks with equal hosts read one clock."""
    pid: int = 0
    device: str = ""
    clock: str = "monotonic"
    """What told the time: `monotonic`, or `virtual` of a simulation."""
    realtime_ns: int = 0
    """What to add to its clock for nanoseconds since 1970; 0 when unknown."""
    offset_ns: int = 0
    """What was added to its times, to bring them onto the first host's clock."""
    error_ns: int = 0
    """By how much that may be wrong, at most; `UNKNOWN_NS` when nothing says."""
    device_error_ns: int = 0
    """By how much its GPU's times may be wrong against its host's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comm:
    """A communicator: a name, the same on all of its ranks, and who they are."""

    name: str
    members: tuple[int, ...]
    """World ranks, in the communicator's own order."""
    meeting: int = 0
    """Tells communicators of one name apart, of ranks that met several times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallKind:
    """What calls have in common that share a plan."""

    collective: str
    nbytes: int = 0
    dtype: str = ""
    op: str = ""
    algorithm: str = ""
    """As the catalogue names it: `all_reduce/ring`."""
    schedule: str = ""
    plan: str = ""
    """The digest of the plan, which names the program exactly."""
    executor: str = ""
    text: str = ""
    """The call in words, the same on all ranks that make it together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What was recorded."""

    title: str = ""
    command: tuple[str, ...] = ()
    machine: str = ""
    """The topology it ran on, by the name of its file, where that is known."""
    version: str = ""
    """Of stretto."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped:
    """What a rank recorded and let go before anybody read it."""

    rank: int
    calls: int = 0
    steps: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneWait:
    """What a lane of a rank waited for, when it was last looked at."""

    rank: int
    comm: int
    """Index into `Recording.comms`."""
    seq: int
    """Of the call that it is in."""
    lane: int = 0
    step: int = -1
    tile: int = 0
    peers: tuple[int, ...] = ()
    """Whom it waits for, as ranks of the communicator."""
    text: str = ""
    """The step as the plan prints it."""
    since_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """All that was recorded of some ranks."""

    calls: Table = field(default_factory=lambda: np.zeros(0, CALL))
    """Of each rank in the order of its calls."""
    steps: Table = field(default_factory=lambda: np.zeros(0, STEP))
    samples: Table = field(default_factory=lambda: np.zeros(0, SAMPLE))
    """How ranks spent their time, where a folder or `record` asked for it."""
    ranks: tuple[RankInfo, ...] = ()
    """By rank."""
    comms: tuple[Comm, ...] = ()
    kinds: tuple[CallKind, ...] = ()
    places: tuple[CodeLine, ...] = ()
    run: Run = field(default_factory=Run)
    dropped: tuple[Dropped, ...] = ()
    waits: tuple[LaneWait, ...] = ()
    """Of calls that were under way when it was made."""
    cut: tuple[str, ...] = ()
    """What could not be read, in words: files that end in the midst of a chunk."""

    @property
    def num_events(self) -> int:
        """Return how many calls and steps there are."""
        return len(self.calls) + len(self.steps)

    @property
    def hosts(self) -> tuple[str, ...]:
        """Return the names of the hosts, in the order of their first ranks."""
        return tuple(dict.fromkeys(info.host for info in self.ranks))

    @property
    def error_ns(self) -> int:
        """Return by how much times of two ranks may be wrong; `UNKNOWN_NS`."""
        errors = [info.error_ns for info in self.ranks]
        return UNKNOWN_NS if UNKNOWN_NS in errors else max(errors, default=0)

    def without(self, *names: str) -> Recording:
        """Return it without communicators whose names begin so: they stay, empty."""
        gone = [c for c, comm in enumerate(self.comms) if comm.name.startswith(names)]
        if not gone:
            return self
        return replace(self, calls=self.calls[~np.isin(self.calls["comm"], gone)])

    def of_ranks(self, *ranks: int) -> Recording:
        """Return what some ranks did."""
        return replace(
            self,
            calls=self.calls[np.isin(self.calls["rank"], ranks)],
            steps=self.steps[np.isin(self.steps["rank"], ranks)],
            samples=self.samples[np.isin(self.samples["rank"], ranks)],
            ranks=tuple(info for info in self.ranks if info.rank in ranks),
        )
