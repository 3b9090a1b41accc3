"""Transfers by this process alone: by mapped memory, or by the kernel."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from stretto.transfer.copying.work import CopyWork
from stretto.transfer.ports import LoopLike
from stretto.transfer.ways.order import Order
from stretto.transfer.ways.transfer import Transfer

_AT_ONCE = 1 << 20
"""Bytes that are moved by who asks for it, before it is told of the transfer."""


def begin_direct(
    loop: LoopLike, order: Order, notify: bytes, deadline: float | None
) -> Transfer:
    """Begin a transfer that no other process takes part in."""
    word = np.zeros(1, np.int64)
    works, release = guarded_works(order, word)
    transfer = Transfer.of(loop, order, notify=notify, deadline=deadline, word=word)
    transfer.works = works
    if order.peer is not None:
        order.peer.begun.add(transfer)
        transfer.then(functools.partial(release, transfer))
    if order.nbytes <= _AT_ONCE:
        transfer.move()
    else:
        loop.move(transfer.move)
    return transfer


def guarded_works(
    order: Order, word: NDArray[np.int64]
) -> tuple[list[CopyWork], Callable[..., None]]:
    """Return what moves the bytes until a word is set, and what gives back its mark."""
    peer, mode = order.peer, order.path.mode
    assert mode is not None, "one side does it all"
    guard, pid, release = (0, 0, 0), 0, _nothing
    if peer is not None:
        assert peer.board is not None, "its memory is of this host"
        slot, epoch = order.where
        now = peer.board.address(slot)
        mark, at = peer.take_mark()
        guard, pid = (at, now, epoch), peer.pid
        release = functools.partial(peer.release, mark)
    return [
        CopyWork(
            order.plan, run, order.src_at, order.dst_at, mode=mode, pid=pid,
            cancel=word, guard=guard,
        )
        for run in order.runs
    ], release  # fmt: skip


def _nothing() -> None:
    """Give nothing back: memory of this process needs no mark."""
