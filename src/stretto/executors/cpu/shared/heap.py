"""Registered memory: `comm.empty()`, at the same offset on every rank.

Allocation is collective, so that every rank does the same to its own heap: first fit,
and growth by one more file. Arrays die whenever Python likes, on each rank at another
time; a block is used again once all ranks have said that theirs is dead.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.errors import CallError, SharedMemoryError
from stretto.executors import Group, hosts_of, unlike
from stretto.executors.cpu.shared.memory import (
    Nowhere,
    Reservation,
    Span,
    create_file,
    prefault,
)

__all__ = ["Heap"]

_LARGEST, _SMALLEST = 1 << 36, 1 << 28
_GROWTH = 1 << 21
_SMALL_ALIGN, _ALIGN = 128, 4096


class Heap:
    """Everybody's registered memory, as one rank sees it.

    That of ranks on other hosts is out of reach; where there are such, it is memory.
    """

    def __init__(self, group: Group) -> None:
        """Reserve addresses for every rank."""
        self._group = group
        hosts = hosts_of(group)
        self._here = [host == hosts[group.rank] for host in hosts]
        self.ranks = tuple(_reserve() if here else Nowhere() for here in self._here)
        self._mine = self.ranks[group.rank]
        self._free: list[tuple[int, int]] = []
        """Offset and size of what nobody uses, in order."""
        self._live: dict[int, int] = {}
        self._dead: set[int] = set()

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
        dead = sorted(self._dead)
        what = f"{tuple(int(n) for n in shape)} {name or dtype.name}, cpu"
        said = self._group.exchange({"empty": what, "dead": dead})
        if wrong := unlike([payload.get("empty", "") for payload, _ in said]):
            raise self._group.fail((), "comm.empty", mismatch=wrong)
        everywhere = set.intersection(*(set(p["dead"]) for p, _ in said))
        for offset in sorted(everywhere):
            self._dead.remove(offset)
            self._release(offset, self._live.pop(offset))
        offset = self._take(nbytes)
        block = Span(self._mine.address + offset, nbytes, self._mine)
        weakref.finalize(block, self._dead.add, offset)
        return np.asarray(block).view(dtype).reshape(tuple(shape))

    def _take(self, nbytes: int) -> int:
        align = _ALIGN if nbytes >= _ALIGN else _SMALL_ALIGN
        need = max(-(-nbytes // align), 1) * align
        while True:
            for index, (start, size) in enumerate(self._free):
                offset = -(-start // align) * align
                if offset + need <= start + size:
                    left = (start, offset - start)
                    right = (offset + need, start + size - offset - need)
                    self._free[index : index + 1] = [p for p in (left, right) if p[1]]
                    self._live[offset] = need
                    return offset
            self._grow(need)

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
        finally:
            for each in fds:
                os.close(each)
        for heap in self.ranks if all(self._here) else (self._mine,):
            prefault(heap.address + start, size)
        self._release(start, size)

    def _release(self, offset: int, size: int) -> None:
        pieces = sorted([*self._free, (offset, size)])
        self._free = []
        for start, length in pieces:
            if self._free and sum(self._free[-1]) == start:
                self._free[-1] = (self._free[-1][0], self._free[-1][1] + length)
            else:
                self._free.append((start, length))


def _reserve() -> Reservation:
    """Reserve as many addresses as the limits of this process allow."""
    size = _LARGEST
    while True:
        try:
            return Reservation(size)
        except SharedMemoryError:
            if size <= _SMALLEST:
                raise
            size //= 4
