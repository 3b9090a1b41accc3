"""Links over time: what every link of a machine carried in every bin.

Without a machine, pairs of ranks that sent stand for links; how wide they are is not
known then, so the most that any pair carried in a bin is taken for full.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stretto.errors import TopologyError
from stretto.studio.analysis.binned import spread
from stretto.studio.analysis.flows import Plans, flows_of
from stretto.studio.analysis.index import Index
from stretto.topology import Link, Machine

MOST_BINS = 160
_MOST_PAIRS = 16_384
"""Pairs whose bytes are followed over time: the busiest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairTraffic:
    """What pairs of ranks exchanged."""

    num_ranks: int
    nbytes: NDArray[np.float64]
    """From rank by to rank, over all time; ranks by their place in `world`."""
    busy_us: NDArray[np.float64]
    """For how long something was on its way, summed over what was."""
    pairs: NDArray[np.int64]
    """`src * num_ranks + dst` of those that are followed in time, the busiest first."""
    over_time: NDArray[np.float64]
    """Bytes by pair and bin."""
    left_out: float
    """The share of all bytes of the pairs that are not followed."""
    unknown_nbytes: float


def traffic(index: Index, plans: Plans, *, num_bins: int = MOST_BINS) -> PairTraffic:
    """Return the traffic of a recording: one pass for pairs, one for their times."""
    n = index.side
    total, busy, unknown = np.zeros(n * n), np.zeros(n * n), 0.0
    for flows in flows_of(index, plans):
        key = flows.src * n + flows.dst
        total += np.bincount(key, flows.nbytes, n * n)
        busy += np.bincount(key, flows.end - flows.begin, n * n)
        unknown += flows.unknown_nbytes
    used = np.flatnonzero(total)
    pairs = used[np.argsort(-total[used], kind="stable")][:_MOST_PAIRS]
    place = np.full(n * n, -1, np.int64)
    place[pairs] = np.arange(len(pairs))
    width = index.span_us / num_bins
    over_time = np.zeros((len(pairs), num_bins))
    for flows in flows_of(index, plans):
        at = place[flows.src * n + flows.dst]
        kept = at >= 0
        over_time += spread(
            at[kept],
            flows.begin[kept] / width,
            flows.end[kept] / width,
            flows.nbytes[kept],
            num_keys=len(pairs),
            num_bins=num_bins,
        )
    every = float(total.sum())
    return PairTraffic(
        num_ranks=n,
        nbytes=total.reshape(n, n),
        busy_us=busy.reshape(n, n),
        pairs=pairs,
        over_time=over_time,
        left_out=1 - float(total[pairs].sum()) / every if every else 0.0,
        unknown_nbytes=unknown,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkUse:
    """What links carried."""

    links: tuple[Link, ...]
    """Those that carried something; of a machine, or one for each pair of ranks."""
    nbytes: NDArray[np.float64]
    """By link and bin."""
    share: NDArray[np.float64]
    """The same, of what the link can carry in a bin; 1 is full."""
    bin_us: float
    is_measured: bool
    """Whether shares are of a bandwidth that is known."""


def link_use(index: Index, found: PairTraffic, machine: Machine | None) -> LinkUse:
    """Return what every link carried: of the machine's, where all ranks are on it."""
    bins = found.over_time.shape[1]
    bin_us, world = index.span_us / bins, index.world.tolist()
    if machine is not None and world and 0 <= world[0] <= world[-1] < machine.num_ranks:
        try:
            return _of_machine(found, machine, bin_us, world)
        except TopologyError:  # ranks that no link joins: show pairs
            pass
    links = tuple(
        Link(
            src=src,
            dst=dst,
            bandwidth_gbytes_per_s=0.0,
            latency_us=0.0,
            name=f"{world[src]}->{world[dst]}",
        )
        for src, dst in (divmod(pair, found.num_ranks) for pair in found.pairs.tolist())
    )
    most = float(found.over_time.max(initial=0.0)) or 1.0
    return LinkUse(
        links=links,
        nbytes=found.over_time,
        share=found.over_time / most,
        bin_us=bin_us,
        is_measured=False,
    )


def _of_machine(
    found: PairTraffic, machine: Machine, bin_us: float, world: list[int]
) -> LinkUse:
    carried = np.zeros((len(machine.links), found.over_time.shape[1]))
    for row, pair in enumerate(found.pairs.tolist()):
        src, dst = divmod(pair, found.num_ranks)
        for link in machine.route(world[src], world[dst]).links:
            carried[link] += found.over_time[row]
    used = np.flatnonzero(carried.any(axis=1))
    links = tuple(machine.links[i] for i in used)
    rates = np.array([link.bandwidth_gbytes_per_s for link in links])
    nbytes = carried[used]
    share = nbytes / np.maximum(rates, 1e-9)[:, None] / (bin_us * 1e3)
    return LinkUse(
        links=links, nbytes=nbytes, share=share, bin_us=bin_us, is_measured=True
    )
