"""Memory that all ranks of a group reach: which parts are in use, alike on every rank.

A part that is given out is a region, with an epoch that no other has. Taking one is
collective, and so the same everywhere. Giving it back is not: arrays die when Python
likes, on each rank at another time. So a rank only notes that a region is withdrawn
there. Once all have said so, in the exchange that the next taking makes anyway, nobody
has an array there, nor a call that writes to it: late writes are impossible, and the
memory is used again. After a fault ranks exchange nothing, and nothing is used again.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple


class FreeRanges:
    """What nobody uses of some memory; who takes gets the first place with room."""

    def __init__(self, grain: int, page: int = 1 << 62) -> None:
        """Give multiples of a grain, and of a page what is as large as one."""
        self._grain, self._page = grain, page
        self._free: list[tuple[int, int]] = []
        """Where each begins, and its size, in order."""

    def size_of(self, nbytes: int) -> int:
        """Return how much is taken for so many bytes; nothing has a place, too."""
        align = self._page if nbytes >= self._page else self._grain
        return max(1, -(-nbytes // align)) * align

    def give(self, start: int, nbytes: int) -> None:
        """Have more that nobody uses."""
        at = bisect.bisect(self._free, (start, 0))
        if at < len(self._free) and start + nbytes == self._free[at][0]:
            nbytes += self._free.pop(at)[1]
        if at and sum(self._free[at - 1]) == start:
            at -= 1
            start, before = self._free.pop(at)
            nbytes += before
        self._free.insert(at, (start, nbytes))

    def take(self, nbytes: int) -> tuple[int, int] | None:
        """Return where so many bytes may go, and their size; None: there is no room."""
        size = self.size_of(nbytes)
        align = self._page if size >= self._page else self._grain
        for index, (start, room) in enumerate(self._free):
            at = -(-start // align) * align
            left = start + room - at - size
            if left >= 0:
                rest = (start, at - start), (at + size, left)
                self._free[index : index + 1] = [part for part in rest if part[1]]
                return at, size
        return None


class GroupRegion(NamedTuple):
    """A part that is in use."""

    offset: int
    nbytes: int
    epoch: int


class GroupRegions(FreeRanges):
    """One rank's account of a group's memory; no I/O."""

    def __init__(self, grain: int, page: int) -> None:
        """Give regions as `FreeRanges` does."""
        super().__init__(grain, page)
        self._live: dict[int, GroupRegion] = {}
        self._withdrawn: set[int] = set()
        self._next = 1

    def account(self) -> dict[str, Any]:
        """Return what is in use and what is free, for a rank that comes late."""
        live = [[one.epoch, one.offset, one.nbytes] for one in self._live.values()]
        free = [list(one) for one in self._free]
        return {"live": live, "free": free, "next": self._next}

    def in_use(self) -> list[GroupRegion]:
        """Return the regions that are not withdrawn here, in the order of taking."""
        live = self._live.items()
        return [one for epoch, one in live if epoch not in self._withdrawn]

    def take_over(self, account: Mapping[str, Any]) -> None:
        """Have the same in use, and free, as the ranks that were there before."""
        self._live = {e: GroupRegion(at, size, e) for e, at, size in account["live"]}
        self._free = [(at, size) for at, size in account["free"]]
        self._next = account["next"]

    def begin(self, nbytes: int) -> GroupRegion | None:
        """Return a new region, or None when there is no room for one."""
        found = self.take(nbytes)
        if found is None:
            return None
        region = GroupRegion(*found, self._next)
        self._next += 1
        self._live[region.epoch] = region
        return region

    def withdraw(self, epoch: int) -> None:
        """Note that a region is not used here any more; any thread may, and twice."""
        self._withdrawn.add(epoch)

    def ask(self, what: str) -> dict[str, Any]:
        """Return what this rank says before it takes a region: for what it is."""
        return {"empty": what, "withdrawn": sorted(self._withdrawn)}

    def hear(self, said: Sequence[Mapping[str, Any]]) -> str:
        """Use again what all have withdrawn; return how far they want other things."""
        if wrong := unlike([one.get("empty", "") for one in said]):
            return wrong
        for epoch in set.intersection(*(set(one["withdrawn"]) for one in said)):
            self._withdrawn.discard(epoch)
            region = self._live.pop(epoch, None)
            if region is not None:
                self.give(region.offset, region.nbytes)
        return ""


def unlike(said: Sequence[str]) -> str:
    """Return who asked for what memory, by rank, where not all asked for the same.

    >>> unlike(["(2,) float32", "(2,) float32", "(2,) int8"])
    'comm.empty of ranks 0, 1: (2,) float32; rank 2: (2,) int8; want it alike on all'
    """
    who: dict[str, list[str]] = {}
    for rank, what in enumerate(said):
        who.setdefault(what, []).append(str(rank))
    if len(who) == 1:
        return ""
    parts = [
        f"rank{'s' * (len(ranks) > 1)} {', '.join(ranks[:16])}"
        f"{' and more' * (len(ranks) > 16)}: {what}"
        for what, ranks in list(who.items())[:16]
    ]
    return f"comm.empty of {'; '.join(parts)}; want it alike on all"
