"""What moved between which ranks, how fast, and who waited for whom: from steps.

Only data between ranks counts: a put is its rank's, to its peer; a get its peer's, to
its rank. Signals and packets that are waited for say how long, and not how much.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.trace import STEP_KINDS, Recording

SLOW = 0.5
"""A link is slow when its rate is below that part of the median of all."""
_PUTS = ("put", "put_packets", "hop_put", "transfer")
_GETS = ("get",)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkTraffic:
    """What went from a rank to another. Ranks are of the world."""

    src: int
    dst: int
    nbytes: int
    moves: int
    moving_s: float
    """Time in steps that moved it, without waits."""
    waited_s: float
    """How long `dst` waited for `src` in steps that wait."""
    rate_gbps: float
    """Of the quicker half of the moves: what the link can do when it is let."""
    is_slow: bool = False


def links(recording: Recording) -> list[LinkTraffic]:
    """Return all links that steps tell of, the slowest first."""
    steps: NDArray[Any] = recording.steps
    steps = steps[steps["peer"] >= 0]
    if not len(steps):
        return []
    widest = max(len(comm.members) for comm in recording.comms)
    members = np.full((len(recording.comms), widest), -1, np.int64)
    for row, comm in enumerate(recording.comms):
        members[row, : len(comm.members)] = comm.members
    peer = members[steps["comm"], np.minimum(steps["peer"], widest - 1)]
    mine = steps["rank"].astype(np.int64)
    kind = steps["kind"]
    putting = np.isin(kind, [STEP_KINDS.index(k) for k in _PUTS])
    moving = putting | np.isin(kind, [STEP_KINDS.index(k) for k in _GETS])
    src, dst = np.where(putting, mine, peer), np.where(putting, peer, mine)
    many = int(max(src.max(), dst.max())) + 1
    pair = src * many + dst
    places, number = np.unique(pair, return_inverse=True)
    long = len(places)
    took = np.maximum(steps["end"] - steps["begin"] - steps["wait"], 1)
    idle = np.bincount(number, weights=np.where(putting, 0, steps["wait"]))
    moved = moving & (steps["nbytes"] > 0)
    some = number[moved]
    moved_often = np.bincount(some, minlength=long)
    volume = np.bincount(some, weights=steps["nbytes"][moved], minlength=long)
    spent = np.bincount(some, weights=took[moved], minlength=long)
    rates = _rates(some, (steps["nbytes"] / took)[moved], long)
    usual = float(np.median(rates[rates > 0])) if (rates > 0).any() else 0.0
    found = [
        LinkTraffic(
            src=int(place) // many,
            dst=int(place) % many,
            nbytes=int(volume[i]),
            moves=int(moved_often[i]),
            moving_s=float(spent[i]) / 1e9,
            waited_s=float(idle[i]) / 1e9,
            rate_gbps=float(rates[i]),
            is_slow=bool(0 < rates[i] < SLOW * usual),
        )
        for i, place in enumerate(places.tolist())
    ]
    return sorted(
        found, key=lambda k: (k.rate_gbps == 0, k.rate_gbps, -k.waited_s, k.src, k.dst)
    )


def _rates(number: NDArray[Any], rate: NDArray[Any], many: int) -> NDArray[np.float64]:
    """Return, by link, the rate that three quarters of its moves do not reach."""
    found = np.zeros(many)
    order = np.lexsort((rate, number))
    ends = np.cumsum(np.bincount(number, minlength=many))
    begin = np.concatenate([[0], ends[:-1]])
    has = ends > begin
    at = begin + (3 * (ends - begin)) // 4
    found[has] = rate[order[np.minimum(at, ends - 1)[has]]]
    return found
