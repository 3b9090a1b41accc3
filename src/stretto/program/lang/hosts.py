"""Ranks by host, for algorithms that are told who is where."""

from __future__ import annotations

from collections.abc import Sequence

from stretto.errors import RanksError
from stretto.program.lang.ranks import Rank, Ranks


def by_host(ranks: Ranks, hosts: Sequence[int]) -> list[list[Rank]]:
    """Return the ranks of each host, in order; of none named, all are on one.

    A rank's index in its host's list is its *place*. Those of equal place, one on each
    host, are a *rail*; where hosts are unequal, places wrap on the smaller ones.
    """
    if not hosts:
        return [list(ranks)]
    if len(hosts) != len(ranks):
        raise RanksError(
            f"hosts={tuple(hosts)}: want one for each of {len(ranks)} ranks"
        )
    found: dict[int, list[Rank]] = {}
    for rank in ranks:
        found.setdefault(hosts[rank], []).append(rank)
    return list(found.values())
