"""Which hosts are one: what the names mean that `host_id` gives them."""

from __future__ import annotations


def host_name(host: str) -> str:
    """Return what people call a host."""
    return host.partition("/")[0]


def is_same_host(one: str, other: str) -> bool:
    """Return whether two ids are of one host; containers differ in node names."""
    return one.rpartition("/")[2] == other.rpartition("/")[2]


def is_same_kernel(one: str, other: str) -> bool:
    """Return whether one kernel runs both: then they may share a Unix socket."""
    tails = (host.rpartition("/")[2].partition(".")[0] for host in (one, other))
    return len(set(tails)) == 1
