"""Ranks on several hosts as a machine: memory or NVLink within, a network between."""

from __future__ import annotations

import functools
from dataclasses import replace

from stretto.topology.assumed import assumed
from stretto.topology.load import load
from stretto.topology.machine import Machine
from stretto.topology.shapes import DraftMachine

__all__ = ["assumed_hosts", "cpu_hosts"]

_MEMORY_GBYTES_PER_S, _MEMORY_US = 40.0, 0.05
_NVLINK_GBYTES_PER_S, _NVLINK_US = 370.0, 0.7
_MESSAGE_US = 2.5
"""A send or a receipt by the system's TCP: what small calls between hosts cost."""
_STAGED_US = 20.0
"""From one GPU to another over TCP: through pinned memory and two threads."""


def assumed_hosts(executor: str, hosts: tuple[int, ...]) -> Machine:
    """Return what ranks of an executor on these hosts are taken to be on."""
    return cpu_hosts(hosts) if executor == "cpu" else _gpu_hosts(hosts)


@functools.lru_cache(maxsize=64)
def cpu_hosts(
    hosts: tuple[int, ...], *, gbytes_per_s: float = 3.125, latency_us: float = 15.0
) -> Machine:
    """Return the machine of ranks on these hosts, which may be unequal.

    All ranks of a host share its way to the network. As for `two_cpu_boxes`, that is
    25 Gb/s Ethernet where nothing was measured.
    """
    return _machine(
        "cpu", hosts, (_MEMORY_GBYTES_PER_S, _MEMORY_US), (gbytes_per_s, latency_us)
    )


@functools.lru_cache(maxsize=64)
def _gpu_hosts(hosts: tuple[int, ...]) -> Machine:
    """Return GPUs that share NVLink in a host, and 25 Gb/s Ethernet between hosts."""
    near = _NVLINK_GBYTES_PER_S, _NVLINK_US
    return _machine("cuda", hosts, near, (3.125, _STAGED_US))


def _machine(
    executor: str,
    hosts: tuple[int, ...],
    near: tuple[float, float],
    far: tuple[float, float],
) -> Machine:
    """Return a machine; near and far are GB/s and microseconds of a way."""
    n, many = len(hosts), max(hosts, default=0) + 1
    like = load(assumed(executor, 2))
    draft = DraftMachine(num_ranks=n, ranks_per_box=n)
    memories = [draft.switch(f"memory{host}") for host in range(many)]
    network = draft.switch("network")
    for rank, host in enumerate(hosts):
        draft.join(rank, memories[host], near)
    for memory in memories:
        draft.join(memory, network, far)
    return Machine(
        name=f"{executor}_hosts{many}x{n}",
        kind=like.kind,
        num_ranks=n,
        links=tuple(draft.links),
        switches=tuple(draft.switches),
        ranks_per_box=n,
        costs=replace(like.costs, message_us=_MESSAGE_US if executor == "cpu" else 0.0),
        about=f"{n} processes on {many} hosts",
    )
