"""Collectives by what they are and how large: the rows of the op x size table."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stretto.program.collectives import bus_factor
from stretto.studio.analysis.index import Index
from stretto.watch import dense_ids, nearest_rank, ordered, places_by


@dataclass(frozen=True, slots=True, kw_only=True)
class CallGroup:
    """Collectives of one kind, algorithm, group size and power of two of bytes."""

    collective: str
    algorithm: str
    num_ranks: int
    low_nbytes: int
    """They have at least so many bytes, and less than twice as many."""
    mean_nbytes: float
    count: int
    """Collectives, not calls."""
    unfinished: int
    """Calls that run still, or failed."""
    p50_us: float
    """Of a rank's call, from when it was made to its end; NaN: nobody timed any."""
    p99_us: float
    low_us: float
    """With `high_us` holds the median with 95 in 100, were collectives independent."""
    high_us: float
    wait_p50_us: float
    """From a collective's first rank to its last."""
    transfer_p50_us: float
    """From its last rank to its end."""
    busbw_gbps: float
    """10^9 bytes a second, by `transfer_p50_us`."""
    total_us: float
    """From the first rank to the end, summed."""


def groups(index: Index, instances: NDArray[np.bool_] | None = None) -> list[CallGroup]:
    """Return the groups of a recording, or of some of its collectives."""
    if not index.num_instances:
        return []
    kinds, comms = index.recording.kinds, index.recording.comms
    names: dict[tuple[str, str], int] = {}
    name_of = np.array(
        [names.setdefault((k.collective, k.algorithm), len(names)) for k in kinds]
    )
    sizes = np.array([len(comm.members) for comm in comms], np.int64)
    power = np.frexp(np.maximum(index.instance_nbytes, 0).astype(np.float64))[1]
    ranks, rank_place = dense_ids(sizes[index.instance_comm])
    key = (name_of[index.instance_kind] * 80 + power) * len(ranks) + rank_place
    keys, group = dense_ids(key)
    wanted = np.ones(index.num_instances, bool) if instances is None else instances
    every = list(names)
    calls_of = places_by(group[index.instance], len(keys))
    instances_of = places_by(group, len(keys))
    found = []
    for g, value in enumerate(keys.tolist()):
        mine = instances_of[g][wanted[instances_of[g]]]
        if not len(mine):
            continue
        calls = (
            calls_of[g][index.chosen(wanted)[calls_of[g]]]
            if instances is not None
            else calls_of[g]
        )
        rest, place = divmod(value, len(ranks))
        name, exponent = divmod(rest, 80)
        found.append(
            _group(index, every[name], int(ranks[place]), exponent, mine, calls)
        )
    return sorted(found, key=lambda one: -one.total_us)


def _group(
    index: Index,
    name: tuple[str, str],
    num_ranks: int,
    exponent: int,
    mine: NDArray[np.int64],
    calls: NDArray[np.int64],
) -> CallGroup:
    lasted = index.lasted_us[calls]
    lasted = lasted[~np.isnan(lasted)]
    low, p50, high, p99 = _quantiles(lasted, len(mine))
    first, last, end = index.first_us[mine], index.last_us[mine], index.end_us[mine]
    is_over = end > last
    transfer = (end - last)[is_over]
    mean = float(index.instance_nbytes[mine].mean())
    moved = float(np.median(transfer)) if len(transfer) else math.nan
    factor = bus_factor(name[0], num_ranks)
    return CallGroup(
        collective=name[0],
        algorithm=name[1],
        num_ranks=num_ranks,
        low_nbytes=1 << (exponent - 1) if exponent > 0 else 0,
        mean_nbytes=mean,
        count=len(mine),
        unfinished=int(index.is_open[calls].sum()),
        p50_us=p50,
        p99_us=p99,
        low_us=low,
        high_us=high,
        wait_p50_us=float(np.median(last - first)),
        transfer_p50_us=moved,
        busbw_gbps=factor * mean / moved / 1e3,
        total_us=float((end - first).sum()),
    )


def _quantiles(
    values: NDArray[np.float64], independent: int
) -> tuple[float, float, float, float]:
    """Return p50 between the ends of its 95 % interval, and p99: order statistics.

    Calls of one collective depend on one another: only collectives are counted.
    """
    n = len(values)
    if not n:
        return (math.nan,) * 4  # nobody timed them
    reach = 0.98 * n / max(1, independent) ** 0.5
    ends = [min(max(0, round(n / 2 + end)), n - 1) for end in (-reach, reach)]
    low, high, p50, p99 = ordered(
        values, *ends, nearest_rank(0.5, n), nearest_rank(0.99, n)
    )
    return low, p50, high, p99
