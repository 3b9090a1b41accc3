"""CPU ranks on several hosts as a machine: shared memory within, a network between."""

from __future__ import annotations

import functools

from stretto.topology.load import load
from stretto.topology.machine import Machine
from stretto.topology.parts import Link, Switch

__all__ = ["cpu_hosts"]

_MEMORY_GBYTES_PER_S, _MEMORY_US = 40.0, 0.05


@functools.lru_cache(maxsize=64)
def cpu_hosts(
    hosts: tuple[int, ...], *, gbytes_per_s: float = 3.125, latency_us: float = 15.0
) -> Machine:
    """Return the machine of ranks on these hosts, which may be unequal.

    All ranks of a host share its way to the network. As for `two_cpu_boxes`, that is
    25 Gb/s Ethernet where nothing was measured.
    """
    n, many = len(hosts), max(hosts, default=0) + 1
    network = n + many
    links: list[Link] = []

    def join(a: int, b: int, names: tuple[str, str], rate: float, late: float) -> None:
        for src, dst, name in (
            (a, b, "->".join(names)),
            (b, a, "->".join(names[::-1])),
        ):
            links.append(
                Link(
                    src=src,
                    dst=dst,
                    bandwidth_gbytes_per_s=rate,
                    latency_us=late,
                    name=name,
                )
            )

    for rank, host in enumerate(hosts):
        names = str(rank), f"memory{host}"
        join(rank, n + host, names, _MEMORY_GBYTES_PER_S, _MEMORY_US)
    for host in range(many):
        names = f"memory{host}", "network"
        join(n + host, network, names, gbytes_per_s, latency_us)
    switches = [Switch(name=f"memory{host}") for host in range(many)]
    return Machine(
        name=f"cpu_hosts{many}x{n}",
        kind="cpu",
        num_ranks=n,
        links=tuple(links),
        switches=(*switches, Switch(name="network")),
        ranks_per_box=n,
        costs=load("cpux2").costs,
        about=f"{n} processes on {many} hosts",
    )
