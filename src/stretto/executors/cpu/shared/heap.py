"""Registered memory: `comm.empty()`, at the same offset on every rank.

Every rank does the same to its own heap, which grows by one more file. What is used and
what is free there, say `fabric.region.GroupRegions`.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.errors import CallError, SharedMemoryError
from stretto.executors import Group, hosts_of
from stretto.fabric.memory import (
    PAGE,
    Nowhere,
    Reservation,
    Span,
    create_file,
    memory_bytes,
    prefault,
)
from stretto.fabric.region import GroupRegions

__all__ = ["Heap"]

_LARGEST, _SMALLEST = 1 << 36, 1 << 28
"""Addresses that a rank's heap has at most, and at least."""
_GROWTH = 1 << 21
_GRAIN = 128


class Heap:
    """Everybody's registered memory, as one rank sees it.

    That of ranks on other hosts is out of reach; where there are such, it is memory.
    """

    def __init__(self, group: Group) -> None:
        """Have none yet; `renew` says whose there are."""
        self._group = group
        self._here: list[bool] = []
        self.ranks: tuple[Reservation | Nowhere, ...] = ()
        self._mine: Reservation | Nowhere = Nowhere()
        self._regions = GroupRegions(_GRAIN, PAGE)
        self._sizes: list[int] = []
        self._files: list[int] = []
        """Files of mine, where newcomers are to be given them; and their sizes."""
        self._arrays: dict[int, tuple[list[int], str]] = {}
        """By the epochs of regions: shape and type of the array."""
        self.inherited: list[NDArray[Any]] = []
        """Of a rank that came late: what the others had. It is never given back."""

    def said(self) -> dict[str, Any]:
        """Return what others are to know of it."""
        account = self._regions.account()
        arrays = [[e, *self._arrays[e]] for e, *_ in account["live"]]
        return {"sizes": self._sizes, "regions": account, "arrays": arrays}

    def renew(
        self, kept: Sequence[int | None], said: Sequence[Mapping[str, Any]]
    ) -> None:
        """Map what the group's new ranks have (collective where there is anything)."""
        kept = [None if said[r]["new"] else was for r, was in enumerate(kept)]
        hosts, me = hosts_of(self._group), self._group.rank
        here_now = [host == hosts[me] for host in hosts]
        old, going = self.ranks, [r for r in range(len(self.ranks)) if r not in kept]
        found: list[Reservation | Nowhere] = []
        for rank, (was, here) in enumerate(zip(kept, here_now, strict=True)):
            if was is not None:
                found.append(old[was])
            elif rank in going and here and isinstance(old[rank], Reservation):
                old[rank].used = 0  # mapped anew in place, from the start
                found.append(old[rank])
            else:
                found.append(_room(sum(here_now)) if here else Nowhere())
        first = next((one for one in said if not one["new"]), said[me])
        for rank, one in enumerate(said):
            if (one["sizes"] or not one["new"]) and _layout(one) != _layout(first):
                raise CallError(
                    f"registered memory of rank {rank} is {_spelt(one)}, that of "
                    f"others is {_spelt(first)}; want comm.empty() in the same order "
                    "on all, or arrays of comm.inherited"
                )
        if first["sizes"]:
            known = zip(kept, here_now, strict=True)
            self._map_all(first, found, [was is None and here for was, here in known])
        self.ranks, self._mine, self._here = tuple(found), found[me], here_now

    def _map_all(
        self,
        first: Mapping[str, Any],
        ranks: Sequence[Reservation | Nowhere],
        new: Sequence[bool],
    ) -> None:
        """Map the files of who is new to this rank (collective)."""
        mine = ranks[self._group.rank]
        if not self._sizes:
            self._sizes = list(first["sizes"])
            self._files = [create_file(size) for size in self._sizes]
            self._regions.take_over(first["regions"])
            self._arrays = {e: (shape, of) for e, shape, of in first["arrays"]}
            self._append(mine, self._files)
            self._mine = mine
            where = {e: at for e, at, _ in first["regions"]["live"]}
            self.inherited = [
                self._array(e, where[e], shape, np.dtype(of))
                for e, (shape, of) in self._arrays.items()
            ]
        everybody = self._group.exchange({"heap": len(self._files)}, self._files)
        try:
            for rank, (_, theirs) in enumerate(everybody):
                if new[rank] and rank != self._group.rank:
                    self._append(ranks[rank], theirs)
        finally:
            came = {each for _, theirs in everybody for each in theirs}
            for each in came - set(self._files):
                os.close(each)

    def _append(self, where: Reservation | Nowhere, files: Sequence[int]) -> None:
        for fd, size in zip(files, self._sizes, strict=True):
            where.append(fd, size)
            prefault(where.address + where.used - size, size)

    def close(self) -> None:
        """Give descriptors back; arrays keep what they lie in."""
        files, self._files = self._files, []
        for fd in files:
            os.close(fd)

    @property
    def addresses(self) -> tuple[int, ...]:
        """Return where each rank's heap begins in this process."""
        return tuple(r.address for r in self.ranks)

    @property
    def nbytes(self) -> int:
        """Return how large the heap is by now."""
        return self._mine.used

    def empty(
        self, shape: Sequence[int], dtype: np.dtype[Any], name: str = ""
    ) -> NDArray[Any]:
        """Return an array in the heap (collective: the same call on every rank).

        `name` is what the caller calls the type, which may be stored as another.
        """
        nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        what = f"{tuple(int(n) for n in shape)} {name or dtype.name}, cpu"
        said = self._group.exchange(self._regions.ask(what))
        if wrong := self._regions.hear([payload for payload, _ in said]):
            raise self._group.fail((), "comm.empty", mismatch=wrong)
        region = self._regions.begin(nbytes)
        if region is None:
            self._grow(self._regions.size_of(nbytes))
            region = self._regions.begin(nbytes)
            assert region is not None, "the heap has just grown by this much"
        self._arrays[region.epoch] = list(map(int, shape)), dtype.str
        return self._array(region.epoch, region.offset, shape, dtype)

    def _array(
        self, epoch: int, offset: int, shape: Sequence[int], dtype: np.dtype[Any]
    ) -> NDArray[Any]:
        nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        block = Span(self._mine.address + offset, nbytes, self._mine)
        weakref.finalize(block, self._regions.withdraw, epoch)
        return np.asarray(block).view(dtype).reshape(tuple(shape))

    def _grow(self, nbytes: int) -> None:
        size = -(-nbytes // _GROWTH) * _GROWTH
        start = self._mine.used
        fds: set[int] = set()
        why = ""
        try:
            try:
                for heap in self.ranks:
                    heap.check_room(size)
                fds.add(create_file(size))
            except SharedMemoryError as e:  # all hear of it before anything has grown
                why = str(e)
            mine = tuple(fds)
            everybody = self._group.exchange({"grow": size, "why": why}, mine)
            fds.update(each for _, theirs in everybody for each in theirs)
            refusals = [
                f"rank {q}: {m['why']}"
                for q, (m, _) in enumerate(everybody)
                if m["why"]
            ]
            if refusals:
                raise CallError(f"empty: {refusals[0]}")
            for rank, (_, theirs) in enumerate(everybody):
                if not self._here[rank]:
                    continue
                fd = mine[0] if rank == self._group.rank else theirs[0]
                self.ranks[rank].append(fd, size)
            self._sizes.append(size)
            if self._group.most_ranks:
                self._files.append(mine[0])
                fds.discard(mine[0])
        finally:
            for each in fds:
                os.close(each)
        for heap in self.ranks if all(self._here) else (self._mine,):
            prefault(heap.address + start, size)
        self._regions.give(start, size)


def _room(num_ranks: int) -> Reservation:
    """Return room for the heap of one of so many ranks of this host.

    All heaps are as large, and share the memory that there is: more addresses than
    twice that are of no use.
    """
    share = 2 * memory_bytes() // num_ranks
    most = min(_LARGEST, 1 << (share - 1).bit_length())
    return Reservation(max(_SMALLEST, most), _SMALLEST)


def _spelt(said: Mapping[str, Any]) -> str:
    """Return what is said of a heap, for people."""
    arrays = [f"{tuple(shape)} {of}" for _, shape, of in said["arrays"]]
    return ", ".join(arrays) or "empty"


def _layout(said: Mapping[str, Any]) -> list[Any]:
    """Return what must be alike on all ranks."""
    return [said["sizes"], said["regions"], said["arrays"]]
