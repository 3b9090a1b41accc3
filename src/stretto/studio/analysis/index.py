"""A recording made ready for questions: every collective's calls found, once.

An *instance* is one collective of one communicator: the calls of all its ranks with the
same number. Times are microseconds from the first thing that was recorded.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.errors import CallError
from stretto.trace import STATES, Recording
from stretto.watch import arrivals, dense_ids

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_FAR = np.iinfo(np.int64).max
_MOST_SIDE = 4096
_DONE = STATES.index("done")
_OPEN = [STATES.index("running"), STATES.index("failed")]


def _spell_span(ranks: Ints) -> str:
    return f"{ranks[0]} to {ranks[-1]}" if len(ranks) else "none"


class Index:
    """What views need of a recording; each part is computed when first asked for."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.calls = recording.calls
        self.steps = recording.steps

    @cached_property
    def origin_ns(self) -> int:
        """Return the first moment of the recording."""
        firsts = [
            int(times.min())
            for times in (self._asked_ns, self.steps["begin"])
            if len(times)
        ]
        return min(firsts, default=0)

    @cached_property
    def span_us(self) -> float:
        """Return how long the recording is; never 0."""
        lasts = [
            int(times.max())
            for times in (self.calls["end"], self._asked_ns, self.steps["end"])
            if len(times)
        ]
        span = (max(lasts, default=0) - self.origin_ns) / 1e3
        return max(span, 1e-3)

    def us(self, times_ns: NDArray[Any]) -> Floats:
        """Return times of the recording in microseconds from its first moment."""
        return (times_ns - np.int64(self.origin_ns)) / 1e3

    @cached_property
    def _asked_ns(self) -> Ints:
        """Return when each call was made; where nobody noted it, when it began."""
        asked = self.calls["enqueue"]
        return np.where(asked > 0, asked, self.calls["start"])

    @cached_property
    def is_done(self) -> NDArray[np.bool_]:
        """Return which calls have an end."""
        return np.asarray((self.calls["state"] == _DONE) & (self.calls["end"] > 0))

    @cached_property
    def is_open(self) -> NDArray[np.bool_]:
        """Return which calls ought to have an end and have none: running, or failed.

        What was only enqueued, on a GPU, has no end that anybody looked for.
        """
        return np.asarray(np.isin(self.calls["state"], _OPEN))

    @cached_property
    def ranks(self) -> Ints:
        """Return the ranks of the recording, rising."""
        return np.array([info.rank for info in self.recording.ranks], np.int64)

    @cached_property
    def world(self) -> Ints:
        """Return all ranks that the recording names, also those it has nothing of."""
        members = [rank for comm in self.recording.comms for rank in comm.members]
        return np.unique(np.array([*self.ranks.tolist(), *members], np.int64))

    @property
    def side(self) -> int:
        """Return how many ranks a matrix of pairs has on a side, if it can be kept."""
        many = len(self.world)
        if many > _MOST_SIDE:
            raise CallError(f"{many:,} ranks; pairs want at most {_MOST_SIDE:,}")
        return many

    def place(self, ranks: NDArray[Any]) -> Ints:
        """Return the places of ranks in `world`."""
        return np.searchsorted(self.world, ranks).astype(np.int64)

    def place_of(self, rank: int) -> int:
        """Return the place of one rank in `world`."""
        if rank not in self.world:
            raise CallError(f"no rank {rank}; there are {_spell_span(self.world)}")
        return int(self.place(np.array([rank]))[0])

    @cached_property
    def row(self) -> Ints:
        """Return the place of each call's rank among `ranks`."""
        return np.searchsorted(self.ranks, self.calls["rank"]).astype(np.int64)

    @cached_property
    def instance(self) -> Ints:
        """Return the instance of every call: they are numbered by comm and number."""
        return self._instances[0]

    @cached_property
    def _instances(self) -> tuple[Ints, Ints, Ints]:
        seqs, place = dense_ids(self.calls["seq"])
        comms = max(1, len(self.recording.comms))
        assert len(seqs) * comms < 1 << 62  # at most as many as calls, each
        keys, ids = dense_ids(self.calls["comm"].astype(np.int64) * len(seqs) + place)
        many = max(1, len(seqs))
        return ids, keys // many, seqs[keys % many] if len(seqs) else keys

    @property
    def num_instances(self) -> int:
        """Return how many collectives there were."""
        return len(self._instances[1])

    @property
    def instance_comm(self) -> Ints:
        """Return the communicator of every instance."""
        return self._instances[1]

    @property
    def instance_seq(self) -> Ints:
        """Return the number of every instance in its communicator."""
        return self._instances[2]

    @cached_property
    def instance_kind(self) -> Ints:
        """Return the kind of every instance: that of one of its calls."""
        kinds = np.zeros(self.num_instances, np.int64)
        kinds[self.instance] = self.calls["kind"]
        return kinds

    @cached_property
    def instance_nbytes(self) -> Ints:
        """Return the bytes of every instance: those of one of its calls."""
        nbytes = np.zeros(self.num_instances, np.int64)
        nbytes[self.instance] = self.calls["nbytes"]
        return nbytes

    @cached_property
    def _came_ns(self) -> Ints:
        """Return when each call came to its instance."""
        return arrivals(self.calls)

    @cached_property
    def first_us(self) -> Floats:
        """Return when the first rank came to every instance."""
        first = np.full(self.num_instances, _FAR)
        np.minimum.at(first, self.instance, self._came_ns)
        return self.us(first)

    @cached_property
    def last_us(self) -> Floats:
        """Return when the last rank came to every instance."""
        last = np.zeros(self.num_instances, np.int64)
        np.maximum.at(last, self.instance, self._came_ns)
        return self.us(last)

    @cached_property
    def end_us(self) -> Floats:
        """Return when the last rank was done with each; if none was, when it came."""
        end = np.zeros(self.num_instances, np.int64)
        done = self.is_done
        np.maximum.at(end, self.instance[done], self.calls["end"][done])
        return np.maximum(self.us(end), self.last_us)

    @cached_property
    def asked_us(self) -> Floats:
        """Return when each call was made."""
        return self.us(self._asked_ns)

    @cached_property
    def late_us(self) -> Floats:
        """Return how long after the first rank each call came to its instance."""
        return self.us(self._came_ns) - self.first_us[self.instance]

    @cached_property
    def lasted_us(self) -> Floats:
        """Return how long each call took, from when it was made; NaN: it has no end."""
        took = (self.calls["end"] - self._asked_ns) / 1e3
        return np.where(self.is_done, took, np.nan)

    def chosen(self, instances: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return which calls belong to some instances."""
        return instances[self.instance]
