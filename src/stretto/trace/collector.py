"""From rings to recordings: take what is new, and keep or write it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stretto.trace.file import SUFFIX, TraceFile
from stretto.trace.rings import RECORD_WORDS, Ring, RingWord, StepWord
from stretto.trace.snapshot import calls_of_records
from stretto.trace.tables import (
    CALL,
    SAMPLE,
    STEP,
    CallKind,
    CodeLine,
    Comm,
    Dropped,
    RankInfo,
    Recording,
    Run,
    Table,
)

EXPLAINED = np.dtype(
    [
        ("kind", "<i2"),
        ("step", "<i4"),
        ("peer", "<i4"),
        ("nbytes", "<i8"),
        ("tile_bytes", "<i8"),
    ]
)
"""What a number of a step means, by that number: of all tiles, and of one at most."""


class Taken(NamedTuple):
    """What was new. Calls name their kinds by place in `kinds`; communicators differ.

    Steps and calls have no communicator's number yet.
    """

    comm: Comm
    kinds: Sequence[CallKind]
    calls: Table
    steps: Table
    dropped_calls: int = 0
    dropped_steps: int = 0


def take(ring: Ring, *, final: bool = False) -> Taken:
    """Return what a ring has that was not taken before.

    A call that runs is left for later, unless this is the last time.
    """
    records, lost = _new(ring.calls, ring.words, RingWord.HEAD, ring.taken, first=1)
    ring.taken += lost + len(records)
    right = records[:, 0] == np.arange(len(records)) + ring.taken - len(records) + 1
    if len(records) and not records[-1, 6] and not final:
        ring.taken -= 1
        records, right = records[:-1], right[:-1]
    lost += int(len(records) - right.sum())
    calls = calls_of_records(records[right], ring.rank, 0)
    nbytes = np.array([kind.nbytes for kind in ring.kinds] or [0], np.int64)
    calls["nbytes"] = nbytes[calls["kind"]]
    steps, lost_steps = _steps(ring)
    return Taken(ring.comm, ring.kinds, calls, steps, lost, lost_steps)


def _new(
    records: NDArray[np.int64],
    words: NDArray[np.int64],
    head: int,
    taken: int,
    *,
    first: int = 0,
) -> tuple[NDArray[np.int64], int]:
    """Return a copy of records since `taken`, and how many were written over."""
    capacity = len(records)
    stop = int(words[head])
    start = max(taken, stop - capacity + 1)
    copied = records[(np.arange(start, stop) + first) & (capacity - 1)]
    again = max(start, min(stop, int(words[head]) - capacity + 1))
    return copied[again - start :], again - taken


def _steps(ring: Ring) -> tuple[Table, int]:
    if ring.steps is None:
        return np.zeros(0, STEP), 0
    new, lost = _new(ring.steps, ring.words, RingWord.STEP_HEAD, ring.steps_taken)
    ring.steps_taken += lost + len(new)
    table = np.zeros(len(new), STEP)
    table["rank"] = ring.rank
    for word, column in (
        (StepWord.SEQ, "seq"),
        (StepWord.LANE, "lane"),
        (StepWord.TILE, "tile"),
        (StepWord.BEGIN, "begin"),
        (StepWord.WAIT, "wait"),
        (StepWord.END, "end"),
    ):
        table[column] = new[:, word]
    for number in np.unique(new[:, StepWord.KIND]).tolist():
        rows = np.flatnonzero(new[:, StepWord.KIND] == number)
        explained = _explained(ring, number)[new[rows, StepWord.AT]]
        for column in ("kind", "step", "peer"):
            table[column][rows] = explained[column]
        done = new[rows, StepWord.TILE] * explained["tile_bytes"]
        left = np.maximum(explained["nbytes"] - done, 0)
        table["nbytes"][rows] = np.minimum(left, explained["tile_bytes"])
    return table, lost


def _explained(ring: Ring, number: int) -> Table:
    made: Any = ring.decoders[number]
    if callable(made):
        made = made()
        ring.decoders[number] = made
    table: Table = made
    return table


class Collector:
    """Keeps what is taken in memory, or writes it to a file in a folder."""

    def __init__(
        self,
        *,
        folder: Path | None = None,
        steps: bool = False,
        only: Comm | None = None,
        run: Run | None = None,
    ) -> None:
        """Take all communicators, or `only` one and those that are parts of it."""
        self.steps, self.only = steps, only
        self.info = RankInfo(rank=0)
        self._folder, self._run = folder, run or Run()
        self._file: TraceFile | None = None
        self._comms: dict[Comm, int] = {}
        self._kinds: dict[CallKind, int] = {}
        self._calls: list[Table] = []
        self._steps: list[Table] = []
        self._samples: list[Table] = []
        self._places: dict[CodeLine, int] = {}
        self._lost = [0, 0]

    def wants(self, comm: Comm) -> bool:
        """Return whether a communicator is taken."""
        only = self.only
        if only is None or comm == only:
            return True
        return comm.meeting == only.meeting and comm.name.startswith(f"{only.name}/")

    def add(self, taken: Taken) -> None:
        """Keep or write what was taken."""
        if not self.wants(taken.comm) or not any(map(len, taken[2:4])):
            self._lost_some(taken)
            return
        news = len(self._comms), len(self._kinds)
        comm = self._comms.setdefault(taken.comm, len(self._comms))
        calls, steps = taken.calls.copy(), taken.steps.copy()
        calls["comm"] = steps["comm"] = comm
        for place in np.unique(calls["kind"]).tolist():
            kind = taken.kinds[place]
            number = self._kinds.setdefault(kind, len(self._kinds))
            calls["kind"][taken.calls["kind"] == place] = number
        if not self.steps:
            steps = steps[:0]
        if self._folder is None:
            self._calls.append(calls)
            self._steps.append(steps)
        else:
            file = self._open()
            file.facts(
                comms=tuple(self._comms)[news[0] :],
                kinds=tuple(self._kinds)[news[1] :],
            )
            file.calls(calls)
            file.steps(steps)
        self._lost_some(taken)

    def sampled(self, rows: Table, places: Sequence[CodeLine]) -> None:
        """Keep or write samples; they name their places by number among these."""
        if self.only is not None or not len(rows):
            return
        known = len(self._places)
        own = [self._places.setdefault(place, len(self._places)) for place in places]
        rows = rows.copy()
        rows["rank"] = self.info.rank
        rows["place"] = np.array([*own, -1])[rows["place"]]
        if self._folder is None:
            self._samples.append(rows)
            return
        file = self._open()
        if len(self._places) > known:
            file.facts(places=tuple(self._places)[known:])
        file.samples(rows)

    def _lost_some(self, taken: Taken) -> None:
        if self.wants(taken.comm):
            self._lost[0] += taken.dropped_calls
            self._lost[1] += taken.dropped_steps * self.steps

    def _open(self) -> TraceFile:
        if self._file is None:
            assert self._folder is not None, "it writes to files"
            name = f"{self.info.rank:05d}-{self.info.pid}{SUFFIX}"
            self._file = TraceFile(self._folder / name)
            self._file.facts(ranks=(self.info,), run=self._run)
        return self._file

    @property
    def _dropped(self) -> tuple[Dropped, ...]:
        calls, steps = self._lost
        lost = Dropped(rank=self.info.rank, calls=calls, steps=steps)
        return (lost,) if calls or steps else ()

    def close(self) -> None:
        """Write what is known only at the end."""
        if self._file is not None:
            self._file.facts(ranks=(self.info,), dropped=self._dropped)
            self._file.close()
            self._file = None

    def recording(self) -> Recording:
        """Return what is kept in memory."""
        return Recording(
            calls=np.concatenate([np.zeros(0, CALL), *self._calls]),
            steps=np.concatenate([np.zeros(0, STEP), *self._steps]),
            samples=np.concatenate([np.zeros(0, SAMPLE), *self._samples]),
            places=tuple(self._places),
            ranks=(self.info,),
            comms=tuple(self._comms),
            kinds=tuple(self._kinds),
            run=self._run,
            dropped=self._dropped,
        )


Source = Callable[[], Sequence[Taken]]
"""What else there is to take, beside rings: what GPUs have written."""
assert RECORD_WORDS == 8
