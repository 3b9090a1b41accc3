"""Bring the clocks of hosts together, and say by how much that may be wrong.

Nobody measures anything: the calls themselves bound the clocks. Nobody leaves an
all_reduce before everybody has entered it, so the earliest end on one host is not
before the latest start on another. Each call bounds the distance of two clocks from
above, seen from both sides; the least bounds of all calls are the interval in which it
lies. Its middle is taken; where clocks drift apart, so that nothing is left, a line
through the middles of a few stretches of time. The error is how far that is, at most,
from a bound of any stretch: no guess, and true of clocks that drift a little, too.

Legend: a, b hosts; o their offsets; S latest start, E earliest end, by call and host.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stretto.trace.tables import UNKNOWN_NS, RankInfo, Recording

_MEETING = ("all_gather", "all_reduce", "all_to_all", "barrier", "reduce_scatter")
"""Collectives that nobody leaves before everybody has entered."""
_STRETCHES = 16
_FEW = 8
"""Calls that a stretch of time has at least."""


class _Line(NamedTuple):
    """What to add to a host's times: `offset` at `since`, and `slope` a nanosecond."""

    offset: float
    slope: float
    since: float
    error: int


def aligned(recording: Recording) -> Recording:
    """Return a recording whose times are on the first host's clock."""
    hosts = recording.hosts
    if len(hosts) < 2:
        return recording
    of_rank = {info.rank: hosts.index(info.host) for info in recording.ranks}
    seen = _bounds(recording, of_rank, len(hosts))
    lines = [_Line(0.0, 0.0, 0.0, 0)]
    for b in range(1, len(hosts)):
        found = _line(*seen, b) if seen is not None else None
        lines.append(found or _by_date(recording.ranks, hosts, b))
    calls, steps = recording.calls.copy(), recording.steps.copy()
    timed = steps["begin"] != 0
    samples = recording.samples.copy()
    steps["wait"] += steps["begin"]  # a moment until it has moved, as all others
    for table, columns in (
        (calls, ("enqueue", "start", "end")),
        (steps, ("begin", "wait", "end")),
        (samples, ("time",)),
    ):
        if len(table):
            most = int(table["rank"].max()) + 1
            place = np.zeros(most, np.int64)
            for rank, host in of_rank.items():
                if rank < most:
                    place[rank] = host
            at = place[table["rank"]]
            for b, line in enumerate(lines[1:], 1):
                _move(table, at == b, columns, line)
    steps["wait"] = np.where(timed, steps["wait"] - steps["begin"], 0)
    ranks = tuple(
        replace(info, offset_ns=round(line.offset), error_ns=line.error)
        for info in recording.ranks
        for line in (lines[of_rank[info.rank]],)
    )
    return replace(recording, calls=calls, steps=steps, samples=samples, ranks=ranks)


def _move(
    table: Any, rows: NDArray[np.bool_], columns: Sequence[str], line: _Line
) -> None:
    for column in columns:
        times = table[column][rows]
        away = np.rint(line.offset + line.slope * (times - line.since))
        table[column][rows] = np.where(times == 0, 0, times + away.astype(np.int64))


def _bounds(
    recording: Recording, of_rank: dict[int, int], num_hosts: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
    """Return S and E of calls in which several hosts met, by call and host."""
    meets = np.array(
        [
            kind.collective in _MEETING
            and "," not in kind.text.partition(" by ")[0]
            and (kind.nbytes > 0 or kind.collective == "barrier")
            for kind in recording.kinds
        ]
    )
    calls = recording.calls
    if not len(calls):
        return None
    calls = calls[meets[calls["kind"]] & (calls["state"] == 1) & (calls["start"] > 0)]
    key = calls["comm"].astype(np.int64) << 40 | calls["seq"]
    number, row = np.unique(key, return_inverse=True)
    places = np.array([of_rank[r] for r in calls["rank"].tolist()], np.int64)
    start = np.full((len(number), num_hosts), np.iinfo(np.int64).min)
    end = np.full((len(number), num_hosts), np.iinfo(np.int64).max)
    np.maximum.at(start, (row, places), calls["start"])
    np.minimum.at(end, (row, places), calls["end"])
    return start, end


def _line(start: NDArray[np.int64], end: NDArray[np.int64], b: int) -> _Line | None:
    """Return what to add to host b's times, from the calls it had with the first."""
    both = (start[:, 0] > 0) & (start[:, b] > 0)
    if not both.any():
        return None
    theirs = start[both, b]
    order = np.argsort(theirs)
    upper = (end[both, 0] - theirs)[order]  # o[b] - o[0] is at most that
    lower = (start[both, 0] - end[both, b])[order]
    parts = max(1, min(_STRETCHES, len(order) // _FEW))
    stretches = np.array_split(np.arange(len(order)), parts)
    when = np.array([theirs[order][part].mean() for part in stretches])
    top = np.array([upper[part].min() for part in stretches], float)
    bottom = np.array([lower[part].max() for part in stretches], float)
    since, slope, offset = float(when[0]), 0.0, (top.min() + bottom.max()) / 2
    if top.min() < bottom.max():
        slope, offset = np.polyfit(when - since, (top + bottom) / 2, 1)
    here = offset + slope * (when - since)
    error = np.maximum(top - here, here - bottom).max()
    return _Line(float(offset), float(slope), since, int(error) + 1)


def _by_date(ranks: Sequence[RankInfo], hosts: Sequence[str], b: int) -> _Line:
    """Return what hosts' dates say: they may be wrong by anything."""
    dates = [
        next((i.realtime_ns for i in ranks if i.host == host and i.realtime_ns), 0)
        for host in (hosts[0], hosts[b])
    ]
    offset = dates[1] - dates[0] if all(dates) else 0
    return _Line(float(offset), 0.0, 0.0, UNKNOWN_NS)
