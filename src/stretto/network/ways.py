"""What a phase asks of the links of a machine, for workers at given ranks.

A rank belongs to one job. Where only switches forward, its own links hold nobody up
unless the job asks for more than they have: else they are left out. What then goes the
same way at the same rate is one flow of that many shares.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

from stretto.errors import CallError
from stretto.network.jobs import Job, Phase
from stretto.topology import Machine, Route

__all__ = ["SharedFlow", "check", "demands", "ways"]

_PER_US = 125.0
"""Bytes a microsecond of one Gb/s."""


class SharedFlow(NamedTuple):
    """Flows of a phase that go the same way at the same rate, as one."""

    route: Route
    nbytes: float
    at_most: float
    """Bytes a microsecond, of all of them."""
    shares: int


@functools.lru_cache(maxsize=65536)
def ways(
    machine: Machine, phase: Phase, ranks: tuple[int, ...]
) -> tuple[SharedFlow, ...]:
    """Return what a phase sends over links that others may use, too."""
    routes = [machine.route(ranks[send.src], ranks[send.dst]) for send in phase.sends]
    own: dict[int, float] = {}
    """What the phase asks of links that only it can use."""
    if _is_switched(machine):
        for send, route in zip(phase.sends, routes, strict=True):
            for k in route.links:
                if _ends_at_rank(machine, k):
                    own[k] = own.get(k, 0.0) + send.gbits_per_s / 8
    rates = [link.bandwidth_gbytes_per_s * (1 + 1e-9) for link in machine.links]
    found: dict[tuple[tuple[int, ...], float], list[float]] = {}
    late: dict[tuple[int, ...], float] = {}
    for send, route in zip(phase.sends, routes, strict=True):
        links = tuple(k for k in route.links if not own.get(k, math.inf) <= rates[k])
        if not links:
            continue
        late[links] = max(late.get(links, 0.0), route.latency_us)
        sums = found.setdefault((links, send.gbits_per_s), [0.0, 0.0])
        sums[0] += send.mbytes * 1e6
        sums[1] += 1
    return tuple(
        SharedFlow(
            Route(links, late[links], ()), nbytes, rate * _PER_US * many, round(many)
        )
        for (links, rate), (nbytes, many) in found.items()
    )


def demands(
    machine: Machine, job: Job, ranks: tuple[int, ...]
) -> dict[int, list[tuple[float, float, float]]]:
    """Return by link when a job asks for it, for how long, and for how many Gb/s.

    Milliseconds since its first sends begin: that is where its circle begins.
    """
    found: dict[int, list[tuple[float, float, float]]] = {}
    at = 0.0
    for index, phase in enumerate(job.phases(len(ranks))):
        at += phase.compute_ms * (index > 0)
        for way in ways(machine, phase, ranks):
            for link in way.route.links:
                arcs = found.setdefault(link, [])
                rate = way.at_most / _PER_US
                if arcs and arcs[-1][0] == at:
                    rate += arcs.pop()[2]
                arcs.append((at, phase.up_ms, rate))
        at += phase.up_ms
    return found


def check(machine: Machine, job: Job) -> None:
    """Refuse a job that does not fit, or whose workers ask more than a rank has."""
    if job.workers > machine.num_ranks:
        raise CallError(
            f"job {job.name}, workers: got {job.workers}; want at most the "
            f"{machine.num_ranks} ranks of {machine.name}"
        )
    if wrong := [r for r in job.ranks if not 0 <= r < machine.num_ranks]:
        raise CallError(
            f"job {job.name}, ranks: got {wrong[0]}; want ranks below "
            f"{machine.num_ranks}, those of {machine.name}"
        )
    has = _slowest(machine)
    for phase in job.phases(job.workers):
        for side in ("src", "dst"):
            asks: dict[int, float] = {}
            for send in phase.sends:
                place = getattr(send, side)
                asks[place] = asks.get(place, 0.0) + send.gbits_per_s
            if (most := max(asks.values(), default=0.0)) > has * (1 + 1e-9):
                raise CallError(
                    f"job {job.name}, gbits_per_s: a worker has {most:g} Gb/s to "
                    f"{'send' if side == 'src' else 'receive'}; want at most {has:g}, "
                    f"what a rank of {machine.name} has"
                )


@functools.lru_cache(maxsize=64)
def _slowest(machine: Machine) -> float:
    """Return the Gb/s of the slowest rank: what all of its links give together."""
    sums = [0.0] * machine.num_ranks
    for link in machine.links:
        if link.src < machine.num_ranks:
            sums[link.src] += link.bandwidth_gbytes_per_s * 8
    return min(sums)


@functools.lru_cache(maxsize=64)
def _is_switched(machine: Machine) -> bool:
    n = machine.num_ranks
    return all(link.src >= n or link.dst >= n for link in machine.links)


def _ends_at_rank(machine: Machine, link: int) -> bool:
    ends = machine.links[link].src, machine.links[link].dst
    return min(ends) < machine.num_ranks
