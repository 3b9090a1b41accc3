"""What this process records: a ring for each communicator, and a file if asked for.

`STRETTO_TRACE` says where to: nothing, and only the last calls are kept, in memory; a
folder, and a thread writes all of them there, in `RANK-PID.trace`; `0`, and nothing is
recorded. `STRETTO_TRACE_STEPS=1` adds the steps inside calls.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import platform
import sys
import threading
import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from stretto._version import __version__
from stretto.errors import SharedMemoryError
from stretto.fabric.variables import text_of
from stretto.trace.collector import Collector, Taken, take
from stretto.trace.ringfile import RingFile
from stretto.trace.rings import Ring, RingWord
from stretto.trace.sampling import Sampler
from stretto.trace.tables import CALL, STEP, CallKind, Comm, RankInfo, Recording, Run

FOLDER, STEPS = "STRETTO_TRACE", "STRETTO_TRACE_STEPS"
_OFF = ("0", "off", "no")
_CALLS, _MANY_CALLS, _FEW_CALLS = 1 << 12, 1 << 16, 1 << 8
_STEPS = 1 << 17
_PERIOD_S = 0.02
"""How often what was recorded is written: long before a ring is full."""
WAITS = "waits of rank"
"""How communicators begin that are none: of time in `wait()` of started calls."""
MARKS = "marks of rank"
"""Those of named parts of a program: no calls, and in no figure."""
_WAITED = CallKind(collective="wait", executor="host", text="wait() of a started call")
Observed: TypeAlias = tuple[str, CallKind, int, int, int, int]
Source = Callable[[], Sequence[Taken]]


class _Process:
    """The rings of this process, and whoever collects from them."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.info = RankInfo(
            rank=-1,
            host=_host(),
            pid=self.pid,
            realtime_ns=time.time_ns() - time.monotonic_ns(),
        )
        self.sources: list[Source] = [self._observed]
        self.observed: deque[Observed] = deque(maxlen=1 << 16)
        self._numbers: dict[str, int] = {}
        self._collectors: list[Collector] = []
        self._owners: weakref.WeakKeyDictionary[Any, tuple[Ring, int]]
        self._owners = weakref.WeakKeyDictionary()
        self._lock = threading.RLock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._sampler = Sampler()
        self._folder = _folder()
        self._file: RingFile | None = None
        if self._folder is not None:
            steps = os.environ.get(STEPS, "") not in ("", *_OFF)
            self.begin(Collector(folder=self._folder, steps=steps, run=_run()))

    def open(self, owner: object, comm: Comm, rank: int, few: bool) -> Ring | None:
        """Return the ring of a communicator; each `open` wants its `close_ring`."""
        with self._lock:
            ring, count = self._owners.get(owner, (None, 0))
            if ring is None:
                try:
                    self._identify(rank, comm)
                except (OSError, SharedMemoryError):  # nobody can look at this rank
                    return None
                assert self._file is not None, "it was just made"
                capacity = _FEW_CALLS if few else _CALLS
                if self._folder is not None:
                    capacity = _MANY_CALLS
                ring = self._file.open(comm, rank, capacity)
                if ring is None:
                    return None
                self._set_steps(ring)
                ring.orphaned = weakref.finalize(owner, self._drop, ring)
                ring.orphaned.atexit = False
            self._owners[owner] = ring, count + 1
            return ring

    def _identify(self, rank: int, comm: Comm) -> None:
        """Learn who this process is, with its first communicator."""
        if self._file is None:
            many = len(comm.members)
            self.info = replace(self.info, rank=rank, num_ranks=many)
            self._file = RingFile(asdict(self.info), self._folder)
            for collector in self._collectors:
                collector.info = self.info

    def close_ring(self, owner: object) -> None:
        """Give a ring back; with the last one, what it has is taken."""
        with self._lock:
            ring, count = self._owners.pop(owner, (None, 0))
            if ring is None or self._file is None:
                return
            if count > 1:
                self._owners[owner] = ring, count - 1
                return
            self._end(ring)
            ring.orphaned.detach()

    def _drop(self, ring: Ring) -> None:
        """Close a ring whose owner was forgotten without being closed."""
        with self._lock:
            if not ring.closed:
                self._end(ring)

    def _end(self, ring: Ring) -> None:
        """Take what a ring has, and let go of it; the file goes with the last one."""
        self.collect(last=ring)
        if self._file is None:
            return
        self._file.close_ring(ring)
        if self._folder is None and not self._file.rings:
            self._file.close()
            self._file = None

    @property
    def rings(self) -> tuple[Ring, ...]:
        """Return those that are open."""
        return () if self._file is None else tuple(self._file.rings)

    def begin(self, collector: Collector) -> None:
        """Collect from now on, also for this one."""
        with self._lock:
            if self._collectors:
                self.collect()
            for ring in self.rings if not self._collectors else ():
                ring.taken = int(ring.words[RingWord.HEAD])
                ring.steps_taken = int(ring.words[RingWord.STEP_HEAD])
            collector.info = self.info
            self._collectors.append(collector)
            self._set_all_steps()
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(
                    target=self._work, name="stretto-trace", daemon=True
                )
                with contextlib.suppress(RuntimeError, MemoryError):  # rings wrap
                    self._thread.start()

    def end(self, collector: Collector) -> None:
        """Collect no more for this one."""
        with self._lock:
            self.collect()
            if collector in self._collectors:
                self._collectors.remove(collector)
            self._set_all_steps()
            collector.close()

    def _set_all_steps(self) -> None:
        for ring in self.rings:
            self._set_steps(ring)

    def _set_steps(self, ring: Ring) -> None:
        wanted = any(c.steps and c.wants(ring.comm) for c in self._collectors)
        if wanted != bool(ring.words[RingWord.STEPS]):
            ring.record_steps(_STEPS if wanted else 0)

    def _observed(self) -> Sequence[Taken]:
        """Return what was seen that no ring has: waits, transfers."""
        seen = [self.observed.popleft() for _ in range(len(self.observed))]
        if seen and self.info.rank < 0:  # it has no communicator: it is nobody's rank
            self._identify(self.pid, Comm(name="process", members=(self.pid,)))
        rank, found = self.info.rank, []
        for where in dict.fromkeys(one[0] for one in seen):
            mine = [one for one in seen if one[0] == where]
            kinds = list(dict.fromkeys(one[1] for one in mine))
            calls = np.zeros(len(mine), CALL)
            calls["rank"] = rank
            calls["kind"] = [kinds.index(one[1]) for one in mine]
            for place, column in enumerate(("start", "end", "nbytes", "state"), 2):
                calls[column] = [one[place] for one in mine]
            calls["enqueue"] = calls["start"]
            before = self._numbers.get(where, 0)
            calls["seq"] = np.arange(before, before + len(mine)) + 1
            self._numbers[where] = before + len(mine)
            comm = Comm(name=f"{where} {rank}", members=(rank,))
            found.append(Taken(comm, kinds, calls, np.zeros(0, STEP)))
        return found

    @property
    def is_collected(self) -> bool:
        """Return whether somebody collects just now."""
        return bool(self._collectors)

    @property
    def wants_steps(self) -> bool:
        """Return whether somebody wants steps just now."""
        return any(c.steps for c in self._collectors)

    def collect(self, last: Ring | None = None) -> None:
        """Take what is new, for all who collect; of one ring for the last time."""
        with self._lock:
            if not self._collectors:
                return
            for ring in self.rings:
                self._give(take(ring, final=ring is last))
            for source in tuple(self.sources):
                for taken in source():
                    self._give(taken)
            if self.info.rank >= 0:
                rows, places = self._sampler.taken()
                for collector in tuple(self._collectors):
                    with contextlib.suppress(OSError):  # `_give` says so
                        collector.sampled(rows, places)

    def _give(self, taken: Taken) -> None:
        for collector in tuple(self._collectors):
            try:
                collector.add(taken)
            except OSError as e:
                self._collectors.remove(collector)
                warnings.warn(
                    f"nothing more is recorded: {e}", RuntimeWarning, stacklevel=2
                )

    def _work(self) -> None:
        while self._collectors and not self._stop.wait(_PERIOD_S):
            self._sampler.take()
            self.collect()

    def shut(self) -> None:
        """Write what is left, at the end of the process."""
        if os.getpid() != self.pid:
            return
        self._stop.set()
        with self._lock:
            for ring in self.rings or (None,):
                self.collect(last=ring)
            for collector in self._collectors:
                collector.close()
            self._collectors.clear()
            if self._file is not None:
                self._file.close()


def _host() -> str:
    """Return a name for this host: those with equal names have one clock."""
    named = text_of("STRETTO_HOST")
    return named or platform.node() or "host"


def _folder() -> Path | None:
    given = os.environ.get(FOLDER, "")
    if not given or given in _OFF:
        return None
    folder = Path(given)
    try:
        folder.mkdir(0o700, parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError(13, "Permission denied")
    except OSError as e:
        warnings.warn(
            f"{FOLDER}={given}: {e.strerror}; want a folder for recordings, or 0. "
            "Only the last calls are kept, in memory",
            RuntimeWarning,
            stacklevel=4,
        )
        return None
    return folder


def _run() -> Run:
    return Run(command=tuple(sys.argv), version=__version__)


_process: _Process | None = None
_making = threading.Lock()


def _here() -> _Process:
    global _process
    with _making:
        if _process is None:
            _process = _Process()
            atexit.register(_process.shut)
        return _process


@functools.cache
def _asked_for() -> bool:
    """Return whether the environment names a folder for recordings."""
    return os.environ.get(FOLDER, "") not in ("", *_OFF)


def _forget() -> None:
    """Start anew in a forked child: the parent's rings are the parent's."""
    global _process, _making
    _process, _making = None, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def open_ring(
    owner: object, comm: Comm, rank: int, *, few: bool = False
) -> Ring | None:
    """Return the ring of a communicator, or None where nothing is recorded.

    `owner` is whoever shares it: the same for all of a communicator's sessions. `rank`
    is of the world. Of `few` calls, fewer are kept.
    """
    if os.environ.get(FOLDER, "") in _OFF:
        return None
    return _here().open(owner, comm, rank, few)


def close_ring(owner: object) -> None:
    """Give back what `open_ring` gave."""
    if _process is not None:
        _process.close_ring(owner)


def add_source(source: Source) -> Callable[[], None]:
    """Take from here, too, until what is returned is called."""
    here = _here()
    here.sources.append(source)
    return lambda: here.sources.remove(source) if source in here.sources else None


def blocked(since_ns: int) -> None:
    """Say that a started call was waited for, since then and until now."""
    observe(WAITS, _WAITED, since_ns)


def observe(
    where: str, kind: CallKind, since_ns: int, *, nbytes: int = 0, failed: bool = False
) -> None:
    """Record what this process did, since then and until now, that is no call.

    `where` is what stands in for a communicator: the rank's number is added. It costs
    next to nothing while nobody collects, and then nothing is kept.
    """
    here = _process
    if here is None and _asked_for():  # a program that has engines, and no communicator
        here = _here()
    if here is not None and here.is_collected:
        now = time.monotonic_ns()
        here.observed.append((where, kind, since_ns, now, nbytes, 1 + failed))


def collects() -> bool:
    """Return whether somebody records now."""
    return _process is not None and _process.is_collected


def wants_steps() -> bool:
    """Return whether somebody wants the steps inside calls."""
    return _process is not None and _process.wants_steps


class Seen:
    """What `record` has seen."""

    recording = Recording()
    """Complete when the block has ended, unless it went to a folder."""


@contextlib.contextmanager
def record(
    folder: str | Path | None = None, *, steps: bool = False, only: Comm | None = None
) -> Iterator[Seen]:
    """Record the calls of this process, and the steps inside them if asked for.

    With a folder, into a file there (see `read_all`); else into memory, for `Seen`.
    """
    if folder is not None:
        Path(folder).mkdir(0o700, parents=True, exist_ok=True)
    path = None if folder is None else Path(folder)
    collector = Collector(folder=path, steps=steps, only=only, run=_run())
    here, seen = _here(), Seen()
    here.begin(collector)
    try:
        yield seen
    finally:
        here.end(collector)
        seen.recording = collector.recording()
