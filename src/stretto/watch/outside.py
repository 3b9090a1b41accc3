"""What ranks do when they are in no call: compute, sleep, or wait for data; and where.

Samples overlap calls. Of each it is known for how long the rank was outside, so the
processor time outside is what a line through all of them says (least squares).
Legend: o, i time outside of calls and inside, by sample.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.trace import Recording

_FEW_SAMPLES = 5
BUSY, IDLE = 0.7, 0.35
CROWDED = 0.15
"""Of its time it was ready, and other processes had the processors: that is told."""
LOADS = 0.25
"""Processors that children use while a rank waits: theirs is its time, busy or not.

They wait, too, while the rank is in calls, so less than a processor says enough.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outside:
    """How a rank spent its time outside of calls."""

    rank: int
    seconds: float
    main: float = 0.0
    """Processor time of the main thread outside, as a part of that time."""
    cpu: float = 0.0
    """Of all its threads."""
    delayed: float = 0.0
    """The main thread was ready and had no processor, as a part of that time."""
    children: float = 0.0
    """Of its child processes, all the time."""
    place: str = ""
    """The line where it was more often than other ranks are."""
    place_share: float = 0.0

    @property
    def doing(self) -> str:
        """Return in words what it did: sleeping, computing or loading."""
        ready = self.main + self.delayed
        crowded = self.delayed >= CROWDED
        if ready > IDLE and crowded:
            return (
                f"short of processors: computing for {self.main:.0%} of it, and for "
                f"{self.delayed:.0%} ready to, while others had them"
            )
        if ready >= BUSY:
            return f"computing ({self.main:.0%} of a processor)"
        if ready > IDLE:
            return f"computing for {self.main:.0%} of it, and waiting for the rest"
        if self.children >= LOADS:
            return (
                "waiting while its child processes compute, as loaders of data do "
                f"({self.children:.1f} processors)"
            )
        if self.cpu >= BUSY:
            return "waiting while its other threads compute"
        return f"asleep: it waits or sleeps ({self.main:.0%} of a processor)"


def outside(recording: Recording, rank: int) -> Outside | None:
    """Return how a rank spent its time outside; None: there are too few samples."""
    samples = recording.samples[recording.samples["rank"] == rank]
    calls = recording.calls[recording.calls["rank"] == rank]
    calls = calls[calls["start"] > 0]
    if len(samples) < _FEW_SAMPLES or not len(calls):
        return None
    first, last = int(calls["start"].min()), int(samples["time"].max())
    samples = samples[samples["time"] - samples["period"] >= first]
    if len(samples) < _FEW_SAMPLES:
        return None
    ends = np.where(calls["end"] > 0, calls["end"], last)
    covered = _covered(calls["start"], ends)
    stop = samples["time"]
    inside = covered(stop) - covered(stop - samples["period"])
    free = np.maximum(samples["period"] - inside, 0).astype(np.float64)
    if free.sum() <= 0:
        return None
    parts = np.stack([free, inside.astype(np.float64)], 1)
    shares = [
        float(np.clip(np.linalg.lstsq(parts, samples[name], rcond=None)[0][0], 0, None))
        for name in ("main", "cpu", "delayed")
    ]
    place, share = _place(recording, rank, samples["place"], free)
    return Outside(
        rank=rank,
        seconds=float(free.sum()) / 1e9,
        main=min(shares[0], 1.0),
        cpu=shares[1],
        delayed=min(shares[2], 1.0),
        children=float(samples["children"].sum() / max(1, samples["period"].sum())),
        place=place,
        place_share=share,
    )


def _covered(start: NDArray[Any], end: NDArray[Any]) -> Any:
    """Return what says how much of the time until a moment is in intervals."""
    order = np.argsort(start, kind="stable")
    start, end = start[order], np.maximum.accumulate(end[order])
    before = np.concatenate([start[:1], end[:-1]])
    begin = np.maximum(start, np.minimum(before, end))
    total = np.concatenate([[0], np.cumsum(end - begin)])

    def until(moment: NDArray[Any]) -> NDArray[np.int64]:
        at = np.searchsorted(begin, moment, side="right")
        last = np.maximum(at - 1, 0)
        over = np.where(at > 0, np.maximum(end[last] - moment, 0), 0)
        found: NDArray[np.int64] = total[at] - over
        return found

    return until


def _place(
    recording: Recording, rank: int, places: NDArray[Any], free: NDArray[np.float64]
) -> tuple[str, float]:
    """Return the line that sets a rank apart, and how much of its time it was there."""
    many = len(recording.places)
    if not many:
        return "", 0.0
    mine = np.bincount(places + 1, weights=free, minlength=many + 1)[1:]
    other = recording.samples[recording.samples["rank"] != rank]
    of_others = other["place"] + 1
    others = np.bincount(of_others, weights=other["period"], minlength=many + 1)
    usual = others[1:] / max(1, len(recording.ranks) - 1)
    best = int(np.argmax(mine - np.minimum(usual, mine)))
    if mine[best] <= 0:
        return "", 0.0
    return recording.places[best].text, float(mine[best] / free.sum())
