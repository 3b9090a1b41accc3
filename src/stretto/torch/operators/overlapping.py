"""Matmuls on GPUs beside copy engines: whose memory, in which order.

A matmul holds all SMs, so a kernel that began beside it would wait for its end. So
kernels that wait for peers come before and between the matmuls, on the caller's own
stream, and beside them there are copies alone. Two such barriers a call let graphs
replay it: nobody writes what a peer still reads.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stretto.errors import CallError
from stretto.runtime.calls import Communicator
from stretto.torch.sums import added

HOW = ""
"""How products are summed; empty: as the profile says.

    whole  those of others' rows, in as few matmuls as there are rows one after another,
           go to them, and are added there
    ring   sums go from rank to rank, and each rank's matmul adds to what has come
"""


class _Room:
    """Memory of one communicator that peers reach, and the stream of its copies."""

    def __init__(self) -> None:
        self.stream = torch.cuda.Stream()
        self._flag = torch.zeros(1, device="cuda")
        self._nbytes = 0
        self._mine: Any = None
        self._peers: list[Any] = []
        self._views: dict[Any, tuple[Tensor, list[Tensor]]] = {}
        """By element type and shape: to make them anew costs more than a copy."""
        self._last: tuple[int, Any] | None = None
        """The stream of the last call that was not captured, and its end."""

    def arrays(
        self, comm: Communicator, like: Tensor, shape: list[int]
    ) -> tuple[Tensor, list[Tensor]]:
        """Return this rank's array and everybody's (collective when it grows).

        All ranks call with arrays of one size, so they grow together.
        """
        nbytes = like.element_size() * torch.Size(shape).numel()
        if nbytes > self._nbytes:
            if torch.cuda.is_current_stream_capturing():
                raise CallError(
                    "all_gather_matmul or matmul_reduce_scatter of a new size in a "
                    "capture of a graph, where no memory is shared; call it once before"
                )
            torch.cuda.synchronize()
            comm.barrier()
            self._views.clear()
            self._mine, self._peers, self._nbytes = None, [], nbytes
            made = comm.empty(nbytes, "uint8", device="cuda")
            self._mine = torch.from_dlpack(made)
            self._peers = [torch.from_dlpack(one) for one in comm.peers(made)]
        key = like.dtype, *shape
        found = self._views.get(key)
        if found is None:
            mine, *theirs = (
                one[:nbytes].view(like.dtype).view(shape)
                for one in (self._mine, *self._peers)
            )
            found = self._views[key] = mine, theirs
        return found

    @contextlib.contextmanager
    def turn(self, comm: Communicator) -> Iterator[_Turn]:
        """Give what a call works with, after the call before this one.

        Calls on two streams use the same memory. What a graph holds follows within it;
        a graph is replayed after what was enqueued before.
        """
        here = torch.cuda.current_stream()
        captured = torch.cuda.is_current_stream_capturing()
        last = self._last
        if not captured and last is not None and last[0] != here.cuda_stream:
            here.wait_event(last[1])
        yield _Turn(self, comm, here, self.stream)
        if not captured:
            self._last = here.cuda_stream, here.record_event()

    def barrier(self, comm: Communicator) -> None:
        """Let the caller's stream wait until everybody's has come here."""
        comm.all_reduce(self._flag)


class _Turn(NamedTuple):
    """What one call works with."""

    room: _Room
    comm: Communicator
    here: Any
    """The caller's stream."""
    copies: Any
    """That of copies."""


_rooms: weakref.WeakKeyDictionary[Communicator, _Room] = weakref.WeakKeyDictionary()


def _room_of(comm: Communicator) -> _Room:
    room = _rooms.get(comm)
    if room is None:
        room = _rooms[comm] = _Room()
    return room


def _others(n: int, me: int) -> list[int]:
    """Return the other ranks, beginning with the next: no two with the same first."""
    return [(me + s) % n for s in range(1, n)]


def _runs(n: int, me: int, rows: int) -> list[slice]:
    """Return the rows of the others' parts, as slices."""
    both = slice(0, me * rows), slice((me + 1) * rows, n * rows)
    return [one for one in both if one.start < one.stop]


def gather_then_multiply(
    comm: Communicator, x: Tensor, w: Tensor, y: Tensor, whole: Tensor | None
) -> None:
    """Store everybody's rows of `x` times `w` in `y`, and the rows in `whole`.

    This rank's part is multiplied while those of the others come. They are pushed: so
    nobody copies his own into shared memory before.
    """
    with _room_of(comm).turn(comm) as turn:
        _gather(turn, x, w, y, whole)


def _gather(turn: _Turn, x: Tensor, w: Tensor, y: Tensor, whole: Tensor | None) -> None:
    room, comm, here, copies = turn
    n, me = comm.num_ranks, comm.rank
    rows = x.shape[0]
    mine, theirs = room.arrays(comm, x, [n * rows, x.shape[1]])
    room.barrier(comm)  # everybody has used what came before
    copies.wait_stream(here)
    with torch.cuda.stream(copies):
        for q in _others(n, me):
            theirs[q][me * rows : (me + 1) * rows].copy_(x)
    torch.mm(x, w, out=y.split(rows)[me])
    here.wait_stream(copies)
    room.barrier(comm)  # everything has come
    for run in _runs(n, me, rows):
        torch.mm(mine[run], w, out=y[run])
        if whole is not None:
            whole[run].copy_(mine[run])
    if whole is not None:
        whole.split(rows)[me].copy_(x)


def multiply_then_scatter(
    comm: Communicator, x: Tensor, w: Tensor, shape: list[int]
) -> Tensor:
    """Return this rank's part of the sum of everybody's `x @ w`; `x` has n parts.

    Parts of the others are multiplied first, and leave while others are multiplied.
    """
    nbytes = shape[0] * shape[1] * x.element_size()
    in_a_ring = HOW == "ring" if HOW else nbytes >= comm.measured().in_a_ring_from
    with _room_of(comm).turn(comm) as turn:
        return (_ring if in_a_ring else _scatter)(turn, x, w, shape)


def _halves(rows: int) -> list[slice]:
    """Return two parts of rows, the first in whole tiles of a matmul."""
    tiles = 128 if rows >= 256 else 1
    first = min(rows, -(-rows // (2 * tiles)) * tiles)
    return [c for c in (slice(0, first), slice(first, rows)) if c.start < c.stop]


def _ring(turn: _Turn, x: Tensor, w: Tensor, shape: list[int]) -> Tensor:
    """Add to the sum that comes from the rank before, and pass it on.

    The part of rank p begins at rank p + 1 and ends at p. Halves take turns: one
    travels while the other is multiplied. Every sum is rounded on its way.
    """
    room, comm, here, copies = turn
    n, me = comm.num_ranks, comm.rank
    rows, columns = shape
    mine, theirs = room.arrays(comm, x, [n * rows, columns])
    xs, slots = x.view(n * rows, -1).split(rows), mine.split(rows)
    after = theirs[(me + 1) % n].split(rows)
    first, out = x.new_empty(rows, columns), x.new_empty(rows, columns)
    left: list[Any] = [None, None]
    for step in range(n):
        part, last = xs[(me - step - 1) % n], step == n - 1
        for half, cut in enumerate(_halves(rows)):
            if step:
                here.wait_event(left[half])
                room.barrier(comm)  # everybody's half of the step before has come
            made = slots[step][cut] if step else first[cut]
            if not step:
                torch.mm(part[cut], w, out=made)
            elif not last:
                made.addmm_(part[cut], w)
            else:
                torch.addmm(made, part[cut], w, out=out[cut])
            if last:
                continue
            if not step and not half:
                room.barrier(comm)  # everybody has used what came before
            copies.wait_stream(here)
            with torch.cuda.stream(copies):
                after[step + 1][cut].copy_(made)
            left[half] = copies.record_event()
    return out


def _scatter(turn: _Turn, x: Tensor, w: Tensor, shape: list[int]) -> Tensor:
    room, comm, here, copies = turn
    n, me, rows = comm.num_ranks, comm.rank, shape[0]
    mine, theirs = room.arrays(comm, x, [n * rows, shape[1]])
    made = x.new_empty(n * rows, shape[1])
    x = x.view(n * rows, -1)
    parts, own = made.split(rows), mine.split(rows)
    room.barrier(comm)  # everybody has summed what came before
    for run in _runs(n, me, rows):
        torch.mm(x[run], w, out=made[run])
    copies.wait_stream(here)
    with torch.cuda.stream(copies):
        for q in _others(n, me):
            theirs[q][me * rows : (me + 1) * rows].copy_(parts[q])
    torch.mm(x.split(rows)[me], w, out=own[me])
    here.wait_stream(copies)
    room.barrier(comm)  # everything has come
    return added(mine, n, shape)
