"""Where ranks of a Slurm step meet: the step's first host, at a port of the step's."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from stretto.errors import LaunchEnvironmentError

_LISTS = ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST")
_FIRST_PORT, _PORTS = 61440, 4096
"""Above those that systems give away by themselves."""
_PART = re.compile(r"([^,\[\]]*)((?:\[[^\]]*\][^,\[\]]*)*)(,|$)")


def address(environment: Mapping[str, str]) -> tuple[str, int] | None:
    """Return the address for a step, or None where there is no step.

    Steps of a job have other ports, and so have jobs, but for one in 4,096.
    """
    nodes = next((environment[name] for name in _LISTS if environment.get(name)), "")
    if not nodes:
        return None
    job, step = (
        environment.get("SLURM_JOB_ID", ""),
        environment.get("SLURM_STEP_ID", ""),
    )
    number = int(job or 0) * 31 + int(step or 0) if (job + step).isdigit() else 0
    return next(expanded(nodes)), _FIRST_PORT + number % _PORTS


def expanded(nodes: str) -> Iterator[str]:
    """Yield the hosts of a list as Slurm writes it.

    >>> list(expanded("login,gpu[08-10,3]-ib"))
    ['login', 'gpu08-ib', 'gpu09-ib', 'gpu10-ib', 'gpu3-ib']
    """
    at = 0
    while at < len(nodes):
        found = _PART.match(nodes, at)
        if found is None or not found.group(0).strip(","):
            raise LaunchEnvironmentError(
                f"SLURM_STEP_NODELIST={nodes[:80]!r} is not a list of hosts; give "
                "address='tcp://HOST:PORT' of rank 0's host"
            )
        yield from _unfolded(found.group(1) + found.group(2))
        at = found.end()


def _unfolded(name: str) -> Iterator[str]:
    """Yield the names of one that may have ranges in brackets."""
    head, bracket, rest = name.partition("[")
    if not bracket:
        yield name
        return
    ranges, _, tail = rest.partition("]")
    for one in ranges.split(","):
        low, _, high = one.partition("-")
        if not low.isdigit() or not (high or low).isdigit():
            raise LaunchEnvironmentError(
                f"{one[:40]!r} in the list of a step's hosts is no range of numbers"
            )
        for number in range(int(low), int(high or low) + 1):
            for end in _unfolded(tail):
                yield f"{head}{number:0{len(low)}}{end}"
