"""What a recording amounts to: how often, how long, how fast, and who was late.

Everything is done by whole columns: ten million calls take seconds. Legend: g a group
of calls of one kind and size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from stretto.program.collectives import bus_factor
from stretto.trace import MARKS, WAITS, CallKind, Recording
from stretto.watch.columns import nearest_rank, ordered, places_by, size_class
from stretto.watch.holdup import HoldUp, holdup, slow_first
from stretto.watch.lateness import Late, Meetings, by_rank, lateness
from stretto.watch.links import LinkTraffic, links

Model: TypeAlias = Callable[[CallKind, int], float]
"""What a call of a kind takes on so many ranks, in us, as a model says; 0: unknown."""

_DONE = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryRow:
    """Calls of one collective, in one class of sizes, in one communicator."""

    collective: str
    comm: str
    num_ranks: int
    size: int
    """The largest power of two that is not larger than their bytes; 0: none."""
    count: int
    """Calls of all ranks; of those that have a start and an end the rest is said."""
    timed: int = 0
    """Those."""
    p50_us: float = 0.0
    p99_us: float = 0.0
    total_s: float = 0.0
    wait_us: float = 0.0
    """Of an average call the time until the last rank came."""
    busbw_gbps: float = 0.0
    """By the median, as nccl-tests count; with reduction in switches it says more than
    wires carry."""
    model_us: float = 0.0
    algorithms: tuple[str, ...] = ()

    @property
    def gap(self) -> float:
        """Return by what factor the median is above the model; 0: there is none."""
        return self.p50_us / self.model_us if self.model_us else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RankShare:
    """How a rank spent its time."""

    rank: int
    span_s: float
    """From its first call to its last."""
    exposed_s: float
    """In calls that it waited for, and in `wait()` of those that it started."""
    hidden_s: float
    """In calls that ran beside it, less what it was in others meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A recording in numbers."""

    rows: tuple[SummaryRow, ...] = ()
    """The ones that took longest first."""
    late: tuple[Late, ...] = ()
    """Those who kept others longest first."""
    holdup: HoldUp = field(default_factory=HoldUp)
    """The slow ranks, and how long the others waited for them."""
    shares: tuple[RankShare, ...] = ()
    num_calls: int = 0
    num_steps: int = 0
    unfinished: int = 0
    failed: int = 0
    span_s: float = 0.0
    links: tuple[LinkTraffic, ...] = ()
    """What steps have moved between ranks, the slowest first."""


def summarise(recording: Recording, *, model: Model | None = None) -> Summary:
    """Return a recording in numbers, beside what a model says of each kind."""
    recording = recording.without(MARKS)
    whole, recording = recording.calls, recording.without(WAITS)
    calls = recording.calls
    state = calls["state"]
    some = _timed(calls)
    meetings = Meetings(some)
    late, slow = lateness(calls, meetings if some is calls else None), holdup(calls)
    return Summary(
        rows=tuple(_rows(recording, some, meetings, model)),
        late=tuple(slow_first(late, slow)),
        holdup=slow,
        shares=tuple(_shares(some if calls is whole else _timed(whole))),
        num_calls=len(calls),
        num_steps=len(recording.steps),
        unfinished=int((state == 0).sum()),
        failed=int((state == 2).sum()),
        span_s=_span(some),
        links=tuple(links(recording)),
    )


def _timed(calls: NDArray[Any]) -> NDArray[Any]:
    """Return the calls that have a start and an end."""
    timed = (calls["state"] == _DONE) & (calls["start"] > 0)
    return calls if timed.all() else calls[timed]


def _span(calls: NDArray[Any]) -> float:
    if not len(calls):
        return 0.0
    return float(int(calls["end"].max()) - int(calls["start"].min())) / 1e9


def _rows(
    recording: Recording,
    calls: NDArray[Any],
    meetings: Meetings,
    model: Model | None,
) -> list[SummaryRow]:
    """Return the table: rows in the order of the time that they took."""
    group, groups = _groups(recording, calls)
    length = calls["end"] - calls["start"]
    waited = meetings.waited(calls)
    count = np.bincount(group, minlength=len(groups))
    total = np.bincount(group, weights=length, minlength=len(groups))
    waits = np.bincount(group, weights=waited, minlength=len(groups))
    del waited
    nbytes = np.bincount(group, weights=calls["nbytes"], minlength=len(groups))
    places = places_by(group, len(groups)) if len(groups) else []
    untimed = _untimed(recording, groups)
    rows = []
    for g, (collective, comm, size, kinds) in enumerate(groups):
        own = length[places[g]]
        wanted = [nearest_rank(share, len(own)) for share in (0.5, 0.99)]
        p50, p99 = ordered(own, *wanted) if len(own) else (0.0, 0.0)
        n = len(recording.comms[comm].members)
        mean = nbytes[g] / max(1, count[g])
        rate = mean / p50 * bus_factor(collective, n) if p50 else 0.0
        said = [recording.kinds[k] for k in kinds]
        modelled = [model(kind, n) for kind in said] if model else []
        rows.append(
            SummaryRow(
                collective=collective,
                comm=recording.comms[comm].name,
                num_ranks=n,
                size=size,
                count=int(count[g]) + untimed.get(g, 0),
                timed=int(count[g]),
                p50_us=p50 / 1e3,
                p99_us=p99 / 1e3,
                total_s=total[g] / 1e9,
                wait_us=waits[g] / max(1, count[g]) / 1e3,
                busbw_gbps=rate,
                model_us=max(modelled, default=0.0),
                algorithms=tuple(
                    dict.fromkeys(k.algorithm for k in said if k.algorithm)
                ),
            )
        )
    return sorted(rows, key=lambda r: (-r.total_s, -r.count, r.collective, r.size))


def _groups(
    recording: Recording, calls: NDArray[Any]
) -> tuple[NDArray[np.int64], list[tuple[str, int, int, list[int]]]]:
    """Return the group of each call, and what groups are: of all calls, timed or not.

    Groups follow from the kind and the communicator, which are few.
    """
    kinds, comms = len(recording.kinds), max(1, len(recording.comms))
    pair = calls["kind"].astype(np.int64) * comms + calls["comm"]
    every = recording.calls
    seen = np.zeros(max(1, kinds * comms), bool)
    seen[every["kind"].astype(np.int64) * comms + every["comm"]] = True
    numbers = np.zeros(len(seen), np.int64)
    groups: dict[tuple[str, int, int], int] = {}
    members: list[list[int]] = []
    for place in np.flatnonzero(seen).tolist():
        kind = recording.kinds[place // comms]
        key = kind.collective, place % comms, size_class(kind.nbytes)
        number = groups.setdefault(key, len(groups))
        if number == len(members):
            members.append([])
        members[number].append(place // comms)
        numbers[place] = number
    return numbers[pair], [(*key, members[n]) for key, n in groups.items()]


def _untimed(
    recording: Recording, groups: list[tuple[str, int, int, list[int]]]
) -> dict[int, int]:
    """Return how many calls of each group nobody timed, or have not ended."""
    calls = recording.calls
    rest = calls[(calls["state"] != _DONE) | (calls["start"] == 0)]
    found: dict[int, int] = {}
    if len(rest):
        for g, (_, comm, _, kinds) in enumerate(groups):
            mine = (rest["comm"] == comm) & np.isin(rest["kind"], kinds)
            found[g] = int(mine.sum())
    return found


def _shares(calls: NDArray[Any]) -> list[RankShare]:
    """Return how long each rank was in calls that it waited for, and in others."""
    if not len(calls):
        return []
    found = []
    for rank, rows in by_rank(calls["rank"]):
        mine = calls[rows]
        started = mine["enqueue"] < mine["start"]
        own = _union(mine["start"][~started], mine["end"][~started])
        both = _union(mine["start"], mine["end"])
        span = int(mine["end"].max()) - int(mine["start"].min())
        found.append(
            RankShare(
                rank=rank,
                span_s=span / 1e9,
                exposed_s=own / 1e9,
                hidden_s=(both - own) / 1e9,
            )
        )
    return found


def _union(start: NDArray[Any], end: NDArray[Any]) -> int:
    """Return the length of the union of intervals."""
    if not len(start):
        return 0
    order = np.argsort(start, kind="stable")
    start, end = start[order], end[order]
    reach = np.maximum.accumulate(end)
    before = np.concatenate([start[:1], reach[:-1]])
    return int(np.maximum(reach - np.maximum(start, before), 0).sum())
