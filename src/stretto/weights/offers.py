"""What others have: versions that are whole, and those that come to them meanwhile."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from stretto.weights.member import Who
from stretto.weights.pulling import From
from stretto.weights.version import Version

__all__ = ["AskedVersion", "VersionOffer", "offers"]

_LONGEST = 64
"""Replicas through which a version may come before each of them has it."""


@dataclass(frozen=True, slots=True)
class VersionOffer:
    """A version that all ranks of a team have, or read themselves meanwhile."""

    version: Version
    members: Sequence[Who]
    """In the order of ranks."""
    is_whole: bool
    via: tuple[str, ...] = ()
    """By which replicas it comes to them; the source is none."""

    @property
    def team(self) -> str:
        """Return whose it is: nothing for the source."""
        return self.members[0].team


def offers(known: Iterable[Who], ours: str) -> Iterator[VersionOffer]:
    """Yield what can be had of the source, and of replicas but our own.

    Not what comes to one of them through us: then two would wait for one another.
    """
    teams: dict[str, dict[int, Who]] = {}
    for who in known:
        if who.team != ours:
            teams.setdefault(who.team, {})[who.rank] = who
    for by_rank in teams.values():
        members = [by_rank[rank] for rank in sorted(by_rank)]
        if len(members) < members[0].of:
            continue
        version = members[0].offers
        if version and all(who.offers == version for who in members):
            yield VersionOffer(version, members, is_whole=True)
        via = tuple(dict.fromkeys(team for who in members for team in who.via))
        if ours in via or len(via) >= _LONGEST:
            continue
        version = next((who.coming for who in members if who.coming), None)
        if version and all(version in (who.offers, who.coming) for who in members):
            yield VersionOffer(version, members, is_whole=False, via=via)


class AskedVersion:
    """A version that is asked for, and who has granted it."""

    def __init__(self, number: int, offer: VersionOffer, base: str) -> None:
        """Ask for an offer; changes since `base` are enough, if that is not empty."""
        self.number, self.base = number, base
        self.team, self.version, self.members = offer.team, offer.version, offer.members
        self.through = [*offer.via, *filter(None, [offer.team])]
        """By which replicas it comes to us."""
        self.granted: dict[int, From] = {}

    @property
    def is_whole(self) -> bool:
        """Return whether all who granted it have switched to it."""
        return all(one.whole for one in self.granted.values())
