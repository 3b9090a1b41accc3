"""Matmuls on GPUs beside copy engines: whose memory, in which order.

A matmul holds all SMs, so a kernel that began beside it would wait for its end. So
kernels that wait for peers come before and between the matmuls, on the caller's own
stream, and beside them there are copies alone. Two such barriers a call let graphs
replay it: nobody writes what a peer still reads.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor

from stretto.calls import Communicator
from stretto.errors import CallError

__all__ = ["HOW", "gather_then_multiply", "multiply_then_scatter"]

HOW = "whole"
"""How parts of the others are multiplied: "each" by itself, as it comes or is wanted;
or as a "whole", in as few matmuls as there are rows one after another."""


class _Room:
    """Memory of one communicator that peers reach, and the stream of its copies."""

    def __init__(self) -> None:
        self.stream = torch.cuda.Stream()
        self._flag = torch.zeros(1, device="cuda")
        self._nbytes = 0
        self._mine: Any = None
        self._peers: list[Any] = []

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
            self._mine, self._peers, self._nbytes = None, [], nbytes
            made = comm.empty(nbytes, "uint8", device="cuda")
            self._mine = torch.from_dlpack(made)
            self._peers = [torch.from_dlpack(one) for one in comm.peers(made)]
        mine, *theirs = (
            one[:nbytes].view(like.dtype).view(shape)
            for one in (self._mine, *self._peers)
        )
        return mine, theirs

    def barrier(self, comm: Communicator) -> None:
        """Let the caller's stream wait until everybody's has come here."""
        comm.all_reduce(self._flag)


_rooms: weakref.WeakKeyDictionary[Communicator, _Room] = weakref.WeakKeyDictionary()


def _room_of(comm: Communicator) -> _Room:
    room = _rooms.get(comm)
    if room is None:
        room = _rooms[comm] = _Room()
    return room


def _others(n: int, me: int) -> list[int]:
    """Return the other ranks, beginning with the next: no two with the same first."""
    return [(me + s) % n for s in range(1, n)]


def _runs(n: int, me: int) -> list[slice]:
    """Return the others' parts as slices of parts that follow one another."""
    both = slice(0, me), slice(me + 1, n)
    return [one for one in both if one.start < one.stop]


def gather_then_multiply(
    comm: Communicator, x: Tensor, w: Tensor, y: Tensor, whole: Tensor | None
) -> None:
    """Store everybody's rows of `x` times `w` in `y`, and the rows in `whole`.

    This rank's part is multiplied while it pulls those of the others.
    """
    n, me, room = comm.num_ranks, comm.rank, _room_of(comm)
    here, copies = torch.cuda.current_stream(), room.stream
    mine, theirs = room.arrays(comm, x, list(x.shape))
    came = x.new_empty(n, *x.shape) if whole is None else whole.view(n, *x.shape)
    out = y.view(n, x.shape[0], -1)
    mine.copy_(x)
    room.barrier(comm)  # everybody's part can be pulled
    copies.wait_stream(here)
    ends = []
    with torch.cuda.stream(copies):
        for q in _others(n, me):
            came[q].copy_(theirs[q])
            ends.append(copies.record_event())
    torch.mm(x, w, out=out[me])
    if HOW == "each":
        for q, end in zip(_others(n, me), ends, strict=True):
            here.wait_event(end)
            torch.mm(came[q], w, out=out[q])
    here.wait_event(ends[-1])
    room.barrier(comm)  # nobody pulls any more
    if HOW != "each":
        for run in _runs(n, me):
            torch.mm(came[run].flatten(0, 1), w, out=out[run].flatten(0, 1))
    if whole is not None:
        came[me].copy_(x)


def multiply_then_scatter(
    comm: Communicator, x: Tensor, w: Tensor, shape: list[int]
) -> Tensor:
    """Return this rank's part of the sum of everybody's `x @ w`; `x` has n parts.

    Parts of the others are multiplied first, and pushed while this rank's own is.
    """
    n, me, room = comm.num_ranks, comm.rank, _room_of(comm)
    here, copies = torch.cuda.current_stream(), room.stream
    mine, theirs = room.arrays(comm, x, [n, *shape])
    made = x.new_empty(n, *shape)
    room.barrier(comm)  # everybody has summed what came before
    if HOW != "each":
        for run in _runs(n, me):
            torch.mm(x[run].flatten(0, 1), w, out=made[run].flatten(0, 1))
    for q in _others(n, me):
        if HOW == "each":
            torch.mm(x[q], w, out=made[q])
        copies.wait_event(here.record_event())
        with torch.cuda.stream(copies):
            theirs[q][me].copy_(made[q])
    torch.mm(x[me], w, out=mine[me])
    here.wait_stream(copies)
    room.barrier(comm)  # everything has come
    return mine[0] + mine[1] if n == 2 else mine.sum(0)  # rounded once
