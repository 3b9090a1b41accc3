"""How a rank spends its time: its processor time and its line, sampled.

A thread that writes recordings looks every 20 ms, which costs about 50 us: what the
main thread and all threads used of processors since, what child processes did, and at
which line of the program the main thread stands. So time between collectives can be
told apart: computing, or asleep, or waiting for a loader of data; and where.

A thread that looks needs the interpreter's lock, and gets it where the main thread lets
go of it: at a call of PyTorch, say, however long it computed in Python before. So where
the main thread computes, the look comes a little later, at a moment drawn by lot, and
the lock is asked for at once then.
"""

from __future__ import annotations

import contextlib
import linecache
import os
import random
import sys
import sysconfig
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType

import numpy as np

from stretto.trace.tables import SAMPLE, CodeLine, Table

_MOST_PLACES, _MOST_KEPT, _MOST_TEXT = 4096, 1 << 14, 100
_PROMPT_S = 1e-5
"""After so long a thread that computes is asked for the lock, while a line is read."""
_COMPUTES = 0.25
"""Of a period; who used less of a processor is seen where it sleeps, at once."""
_CHILDREN_EVERY = 5
"""Child processes and memory are asked for in every so-many-th sample."""
_TICK_NS = 1_000_000_000 // (os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 1)
_OTHERS = tuple(
    {str(Path(__file__).parents[1]), *map(str, sysconfig.get_paths().values())}
    - {sysconfig.get_paths()["data"], sysconfig.get_paths()["scripts"]}
)
"""Where code lies that is not the user's own: ours, Python's, installed packages."""


class Sampler:
    """Takes samples of this process; who collects takes them from here."""

    def __init__(self) -> None:
        self._rows: list[tuple[int, ...]] = []
        self._places: dict[CodeLine, int] = {}
        self._by_line: dict[tuple[CodeType, int], int] = {}
        self._clock = _main_clock()
        self._last = self._now()
        self._count, self._children, self._memory = 0, 0, 0

    def take(self) -> None:
        """Take one; the oldest are lost where nobody collects."""
        now = self._now()
        spent = tuple(max(0, a - b) for a, b in zip(now, self._last, strict=True))
        self._last = now
        children = 0
        if self._count % _CHILDREN_EVERY == 0:
            used, self._memory = _children_ns(), _memory()
            children, self._children = max(0, used - self._children), used
        self._count += 1
        period, main, _, delayed = spent
        with _prompt() if main + delayed > _COMPUTES * period else _AT_ONCE:
            place = self._place()
        self._rows.append((-1, place, now[0], *spent, children, self._memory))
        del self._rows[:-_MOST_KEPT]

    def taken(self) -> tuple[Table, tuple[CodeLine, ...]]:
        """Return what is new, and all places by their numbers."""
        rows, self._rows = self._rows, []
        return np.array(rows, SAMPLE), tuple(self._places)

    def _now(self) -> tuple[int, int, int, int]:
        main = 0
        if self._clock is not None:
            with contextlib.suppress(OSError):
                main = time.clock_gettime_ns(self._clock)
        return time.monotonic_ns(), main, time.process_time_ns(), _delayed_ns()

    def _place(self) -> int:
        """Return where the main thread is: the innermost line of the user's own."""
        frame = sys._current_frames().get(threading.main_thread().ident or 0)
        while frame is not None and frame.f_code.co_filename.startswith(_OTHERS):
            frame = frame.f_back
        if frame is None or frame.f_code.co_filename.startswith("<"):
            return -1
        key = frame.f_code, frame.f_lineno
        if key not in self._by_line:
            if len(self._by_line) >= _MOST_PLACES:
                return -1
            place = CodeLine(text=_spelled(frame))
            self._by_line[key] = self._places.setdefault(place, len(self._places))
        return self._by_line[key]


_AT_ONCE = contextlib.nullcontext()


@contextlib.contextmanager
def _prompt() -> Iterator[None]:
    """Wait for a moment drawn by lot, then hold the lock soon after it."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(_PROMPT_S)
    prompt = sys.getswitchinterval()
    try:
        time.sleep(random.uniform(0, usual))
        yield
    finally:
        if sys.getswitchinterval() == prompt:  # else the program has set it
            sys.setswitchinterval(usual)


def _spelled(frame: FrameType) -> str:
    """Return a line as people name it: the file, the number, what stands there."""
    file = frame.f_code.co_filename
    code = linecache.getline(file, frame.f_lineno).strip().rstrip(":")
    text = f"{Path(file).name}:{frame.f_lineno}"
    return f"{text}, {code}"[:_MOST_TEXT] if code else text


def _main_clock() -> int | None:
    """Return the clock of the main thread's processor time, where there is one."""
    ident = threading.main_thread().ident
    if ident is None or not hasattr(time, "pthread_getcpuclockid"):
        return None
    return time.pthread_getcpuclockid(ident)


def _delayed_ns() -> int:
    """Return for how long the main thread was ready and had no processor."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        pid = os.getpid()
        said = Path(f"/proc/self/task/{pid}/schedstat").read_text(encoding="ascii")
        return int(said.split()[1])
    return 0


def _children_ns() -> int:
    """Return the processor time of the child processes that the main thread started."""
    total = 0
    with contextlib.suppress(OSError, ValueError, IndexError):
        pid = os.getpid()
        text = Path(f"/proc/self/task/{pid}/children").read_text(encoding="ascii")
        for child in text.split()[:64]:
            with contextlib.suppress(OSError):
                stat = Path(f"/proc/{child}/stat").read_text(encoding="utf-8")
                said = stat.rpartition(")")[2].split()
                total += (int(said[11]) + int(said[12])) * _TICK_NS
    return total


def _memory() -> int:
    """Return the bytes of memory that this process has."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        text = Path("/proc/self/statm").read_text(encoding="ascii")
        return int(text.split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0
