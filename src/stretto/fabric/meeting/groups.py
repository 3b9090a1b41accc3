"""A group of ranks: its name, the same on all of them, and its members."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from stretto.errors import CallError
from stretto.fabric.faults import name_ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Members are world ranks of one generation, in the group's own rank order."""

    name: str
    members: tuple[int, ...]
    generation: int = 0
    part_of: Group | None = None
    """The group whose fate it shares: what breaks one breaks the other."""
    survives: bool = False
    """Whether those who are left of it go on: who is gone is not waited for."""

    @property
    def fate(self) -> Group:
        """The largest group that breaks with this one."""
        return self if self.part_of is None else self.part_of.fate

    def index(self, world_rank: int) -> int:
        """Return the group's own number of a world rank."""
        return self.members.index(world_rank)

    def name_ranks(self, world_ranks: Iterable[int]) -> str:
        """Return `rank 1`, with the world's number too where it is another."""
        indices = sorted(map(self.index, world_ranks))
        if all(self.members[i] == i for i in indices):
            return name_ranks(indices)
        names = [f"{i} (world rank {self.members[i]})" for i in indices]
        return f"rank{'s' * (len(names) != 1)} {', '.join(names)}"


def world(num_ranks: int, generation: int = 0, *, nth: int = 0) -> Group:
    """Return the group of all ranks of a generation, the nth of its world."""
    name = f"world+{nth}" if nth else "world"
    return Group(name=name, members=tuple(range(num_ranks)), generation=generation)


def part_of(
    whole: Group, name: str, members: Sequence[int], *, apart: bool = False
) -> Group:
    """Return the group of some ranks of another: it breaks with it, or is `apart`."""
    return Group(
        name=f"{whole.name}/{name}",
        members=tuple(whole.members[i] for i in members),
        generation=whole.generation,
        part_of=None if apart else whole,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Roster:
    """What a rank of a generation knows of all of its ranks."""

    rank: int
    """Its own."""
    hosts: tuple[int, ...] = ()
    """The host of each rank; empty: all are on one."""
    host_names: tuple[str, ...] = ()


def check_votes(rank: int, color: int | None, key: int) -> None:
    """Refuse a split by what is no whole number."""
    for name, number in (("color", color), ("key", key)):
        if number is None and name == "color":
            continue
        if type(number) is not int or abs(number) >= 1 << 63:
            none = " or None" if name == "color" else ""
            raise CallError(
                f"rank {rank}: split: {name}={str(number)[:40]!r}; want a whole "
                f"number{none}"
            )


def divide(
    parent: Group, nth: int, votes: Sequence[tuple[int | None, int]]
) -> dict[int, Group]:
    """Return each member's new group, by world rank, from (color, key) votes.

    Members of one color form a group, ordered by key and then by their old
    order; a color of None joins none. `nth` counts the splits of the parent, so
    that two splits into the same members stay two groups.
    """
    colors = sorted({color for color, _ in votes if color is not None})
    found: dict[int, Group] = {}
    for color in colors:
        chosen = [i for i, (c, _) in enumerate(votes) if c == color]
        chosen.sort(key=lambda i: (votes[i][1], i))
        members = tuple(parent.members[i] for i in chosen)
        name = f"{parent.name}/{nth}.{color}"
        group = Group(name=name, members=members, generation=parent.generation)
        found.update(dict.fromkeys(members, group))
    return found


def is_sound(members: Iterable[int], num_ranks: int) -> bool:
    """Return whether these are distinct ranks of a world of this size."""
    seen = list(members)
    return (
        bool(seen)
        and len(set(seen)) == len(seen)
        and all(0 <= rank < num_ranks for rank in seen)
    )
