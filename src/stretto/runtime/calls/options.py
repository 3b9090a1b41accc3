"""How the ranks of a job may change: what its users say, and a launcher passes on."""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass
from typing import Any

from stretto import topology
from stretto.errors import CallError, LaunchEnvironmentError, MembershipError
from stretto.fabric.patience import check_timeout

ELASTIC = "STRETTO_ELASTIC"
"""The variable in which a launcher says how ranks may change, as JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Elastic:
    """How the ranks of a job may change; the same on all."""

    min_ranks: int = 0
    """With fewer nobody goes on; 0: all that there were at the start."""
    max_ranks: int = 0
    """How many there may come to be, for whom memory is laid out from the start; 0:
    as many as stand by, on a machine as it has places. Memory is laid out anew then."""
    standby: int = 0
    """How many stand by. With some, a lost rank's place is kept for one of them."""
    wait_s: float = 30.0
    """How long a place is kept for a standby that has not come yet."""
    machine: str = ""
    """The machine, by name or by its file: rank r sits at its place r at the start, and
    who takes a lost rank's number where that sat. Programs for the places that are
    taken compete, and orders of the ranks; the simulator decides."""

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        for name in ("min_ranks", "max_ranks", "standby"):
            given = getattr(self, name)
            if type(given) is not int or given < 0:
                raise CallError(
                    f"Elastic: {name}={str(given)[:40]}; want a whole number, not "
                    "below 0"
                )
        waited("Elastic", self.wait_s, "wait_s")
        if not isinstance(self.machine, str):
            raise CallError(
                f"Elastic: machine={str(self.machine)[:40]}; want a name of `stretto "
                "list`, or a .toml file's"
            )
        has = topology.load(self.machine).num_ranks if self.machine else math.inf
        if max(self.min_ranks, self.max_ranks) > has:
            raise CallError(
                f"Elastic: min_ranks={self.min_ranks}, max_ranks={self.max_ranks} on "
                f"{self.machine}, which has {has} places; want no more"
            )
        if self.max_ranks and self.min_ranks > self.max_ranks:
            raise CallError(
                f"Elastic: min_ranks={self.min_ranks} of max_ranks={self.max_ranks}; "
                "want no more than these"
            )

    @classmethod
    def of_environment(cls) -> Elastic | None:
        """Return what a launcher has said, if it has."""
        text = os.environ.get(ELASTIC)
        if not text:
            return None
        try:
            return cls(**json.loads(text))
        except (ValueError, TypeError) as e:
            raise LaunchEnvironmentError(
                f"{ELASTIC}={text[:80]!r} is no set of options of Elastic ({e}); unset "
                "it, or start with `stretto launch`"
            ) from None

    def check_most(self, num_ranks: int, what: str) -> None:
        """Raise when there may not be so many ranks; `what` asks for them."""
        if self.max_ranks and num_ranks > self.max_ranks:
            raise MembershipError(
                f"{what}: {num_ranks} ranks; want at most max_ranks={self.max_ranks} "
                "of Elastic"
            )
        if self.machine and num_ranks > (n := topology.load(self.machine).num_ranks):
            raise MembershipError(
                f"{what}: {num_ranks} ranks; {self.machine} (machine of Elastic) has "
                f"{n} places"
            )

    def least(self, num_ranks: int) -> int:
        """Return with how many of so many ranks a job goes on."""
        return self.min_ranks or num_ranks


def waited(what: str, given: Any, word: str) -> float:
    """Return a time to wait for somebody: 0 only looks."""
    check_timeout(0 if given is None else given, what, word)
    if given is None:
        raise CallError(f"{what}: {word}=None; want seconds, 0 or more")
    return float(given)
