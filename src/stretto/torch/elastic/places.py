"""Of which groups the rank of a place is: who comes there hears it from who is left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from stretto.errors import MembershipError

__all__ = ["GroupPlace", "places_of"]

GroupPlace: TypeAlias = tuple[str, list[int]]
"""Name and members of a group."""


def places_of(said: Sequence[Mapping[str, Any]]) -> list[list[GroupPlace]]:
    """Return name and members of each group of every rank, by what all ranks say.

    Each says of which groups it is, whether it has just come and has only groups of
    the same kinds, and what it knew of all ranks before.
    """
    stay = [one["parts"] for one in said if not one["comes"]]
    known = [one["places"] for one in said if len(one["places"]) == len(said)]
    return [
        _found(rank, one["parts"], stay, [places[rank] for places in known])
        if one["comes"]
        else one["parts"]
        for rank, one in enumerate(said)
    ]


def _found(
    rank: int,
    alike: Sequence[GroupPlace],
    stay: Sequence[Sequence[GroupPlace]],
    before: Sequence[Sequence[GroupPlace]],
) -> list[GroupPlace]:
    """Return the groups of a place: those in which others have it, or had it before.

    Ranks have as many groups, of one kind in each place. One that no other is in is of
    this rank alone.
    """
    found = []
    for nth, (name, members) in enumerate(alike):
        theirs = [one[nth] for one in (*stay, *before) if len(one) == len(alike)]
        known = [one for one in theirs if rank in one[1]]
        if not known and len(members) > 1:
            raise MembershipError(
                f"nobody is left of group {nth + 1} of rank {rank}, of which there "
                f"were {len(members)}: its place cannot be taken"
            )
        found.append(known[0] if known else (f"{name}!{rank}", [rank]))
    return found
