"""Begin transfers: what is asked for becomes an order, and the order goes its way.

    views -> order (the plan, proved, and the way) -> whoever moves the bytes

A way is this process alone, by loops on the CPU or copies on a GPU's stream; both
processes, through a stage; or a store.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

from stretto.errors import CallError
from stretto.fabric.patience import check_deadline
from stretto.transfer.engine.exchange import Exchange
from stretto.transfer.engine.ground import Ground
from stretto.transfer.engine.quick import quick
from stretto.transfer.links.link import notice
from stretto.transfer.memory.tensors import GPU
from stretto.transfer.ways.direct import begin_direct, guarded_works
from stretto.transfer.ways.order import Order, order_of
from stretto.transfer.ways.paths import BY_GPU
from stretto.transfer.ways.request import (
    header_of,
    pack_request,
    receiving_of,
    sending_of,
    works_here,
)
from stretto.transfer.ways.staged import INLINE, can_go_straight
from stretto.transfer.ways.transfer import PreparedTransfer, Transfer

if TYPE_CHECKING:
    from stretto.transfer.ways.gpu import EnqueuedCopies, GpuTransfer, Passing

_WORTH_ASKING = 128 << 10
"""Bytes from which a peer is asked where to put them, which takes a round trip."""


def start(
    ground: Ground, src: Any, dst: Any, *, notify: bytes = b"", lease: bytes = b"",
    deadline: float | None = None, checksum: bool = False, stream: Any = None,
    by: str = "",
) -> Transfer:  # fmt: skip
    """Begin a transfer; see `View.put`."""
    if deadline is not None:
        check_deadline(deadline, "a transfer", "deadline")
    if notify:
        notice(notify)
    order = order_of(ground, src, dst, lease=lease, checksum=checksum)
    if order.path.is_stored:
        if notify or lease or by:
            raise CallError("a store takes no notify=, lease= or by=")
        return _stored(ground, order, stream, deadline)
    transfer: Transfer
    if order.path is BY_GPU:
        transfer = _on_gpu(ground, order, stream, by, notify, deadline)
    elif order.path.mode is not None:
        transfer = begin_direct(ground.loop, order, notify, deadline)
    else:
        transfer = _staged(ground, order, stream, notify, deadline)
    if transfer.until is not None:
        transfer.then(ground.loop.at(transfer.until, transfer.expire).cancel)
    return transfer


def prepare(
    ground: Ground, src: Any, dst: Any, *, signal: Any = None, **how: Any
) -> PreparedTransfer | EnqueuedCopies | Passing:
    """Prepare a transfer that is done again and again."""
    order = order_of(
        ground, src, dst, lease=how.get("lease", b""),
        checksum=bool(how.get("checksum")),
    )  # fmt: skip

    def restart(**more: Any) -> Transfer:
        return start(ground, order.src, order.dst, **how, **more)

    if order.path.is_stored:
        return PreparedTransfer(Transfer.of(ground.loop, order), None, restart)
    notify = how.get("notify", b"")
    record = np.frombuffer(notice(notify), np.int64).copy() if notify else None
    if order.path is BY_GPU:
        return _enqueued(ground, order, signal, how.get("by", ""))
    if signal is not None:
        raise CallError("signal= of memory that is not on a GPU; notify= is for it")
    if order.ours.region.kind == GPU:
        from stretto.transfer.ways.gpu import Passing

        return Passing(lambda stream: restart(stream=stream), order.path.name)
    idle = Transfer.of(ground.loop, order, notify=notify)
    again, release = None, None
    if order.path.mode is not None:
        idle.works, release = guarded_works(order, idle.word)
    elif not order.checked:
        works = works_here(
            order.plan, order.runs, order.ours_at, None, is_put=order.is_put
        )
        again = quick(
            ground.loop, _peer(order), works, header_of(order), _far_pages(order),
            is_put=order.is_put,
        )  # fmt: skip
    made = PreparedTransfer(idle, record, restart, again)
    if release is not None:
        weakref.finalize(made, release).atexit = False
    return made


def _peer(order: Order) -> Exchange:
    assert isinstance(order.peer, Exchange), "only peers share memory with us"
    return order.peer


# By both.


def _staged(
    ground: Ground, order: Order, stream: Any, notify: bytes, deadline: float | None
) -> Transfer:
    transfer = Transfer.of(ground.loop, order, notify=notify, deadline=deadline)
    peer, is_put, checked = _peer(order), order.is_put, order.checked
    header, pages = header_of(order), _far_pages(order)
    header["sum"] = checked
    if notify and is_put:
        header["notify"] = notify.hex()
    ring = None
    if order.ours.region.kind == GPU:
        ring = ground.gpu.ring(peer)
        ring.lane.follow(ground.gpu.handle(stream))
    works = works_here(order.plan, order.runs, order.ours_at, ring, is_put=is_put)
    transfer.is_in_order = len(works) == len(order.runs) and not is_put
    number = peer.number()
    transfer.halt = lambda: peer.drop(number)
    if not is_put:
        receiving = receiving_of(ring, peer, works, order)
        opened = receiving.open()
        header["field"] = 0 if opened is None else opened.offset
        peer.begin(transfer, pack_request(header, pages), receiving, number)
        return transfer
    is_direct = order.nbytes >= _WORTH_ASKING and can_go_straight(works)
    header["direct"] = is_direct = is_direct and peer.link.fields is not None
    sending = sending_of(
        ring, peer, number, works, order, checked=checked, is_direct=is_direct
    )
    data = b""
    if sum(work.packed_bytes for work in works) <= INLINE and not checked:
        header["inline"] = True
        data = sending.inline()
    peer.begin(transfer, pack_request(header, pages, data), sending, number)
    return transfer


def _far_pages(order: Order) -> Any:
    pages = order.theirs.pages
    return None if pages is None else pages.astype(np.int64)


# By a store.


def _stored(
    ground: Ground, order: Order, stream: Any, deadline: float | None
) -> Transfer:
    from stretto.transfer.ways.stored import StoredTransfer

    on_gpu = order.ours.region.kind == GPU
    copier = ground.gpu.copier(stream) if on_gpu else None
    transfer = StoredTransfer(ground.loop, order, ground.helpers, copier, deadline)
    if transfer.until is not None:
        transfer.then(ground.loop.at(transfer.until, transfer.expire).cancel)
    transfer.begin()
    return transfer


# By a GPU.


def _on_gpu(
    ground: Ground, order: Order, stream: Any, by: str, notify: bytes,
    deadline: float | None,
) -> GpuTransfer:  # fmt: skip
    """Begin copies on a stream."""
    from stretto.transfer.ways.gpu import GpuTransfer

    gpu, peer = ground.gpu, order.peer
    handle = gpu.handle(stream)
    moves = [gpu.prepare(order.plan, r, order.src, order.dst, by) for r in order.runs]
    mark, at = (0, 0) if peer is None or peer.board is None else peer.take_mark()

    def free() -> None:
        for move in moves:
            move.close()
        if mark and peer is not None:
            peer.release(mark)

    transfer = GpuTransfer.of(
        ground.loop, order, path=f"gpu, by {moves[0].by}" if moves else "", moves=moves,
        stream=handle, free=free, notify=notify, deadline=deadline,
    )  # fmt: skip
    if mark and peer is not None:
        transfer.guard(peer, at, *order.where)
    if not moves:
        transfer.complete()
        return transfer
    if order.checked:
        transfer.is_same = gpu.comparing(order.plan, order.runs, order.src, order.dst)
    transfer.enqueue()
    if notify or deadline is not None:
        ground.loop.move(transfer.settle)
    return transfer


def _enqueued(ground: Ground, order: Order, signal: Any, by: str) -> EnqueuedCopies:
    """Return what moves memory of GPUs whenever it is called with a stream."""
    from stretto.transfer.ways.gpu import EnqueuedCopies

    gpu, runs = ground.gpu, order.runs
    word = 0 if signal is None else gpu.word(signal)
    if word and not runs:
        raise CallError("signal= of a transfer that moves nothing")
    moves = [
        gpu.prepare(
            order.plan, run, order.src, order.dst, by, word if run is runs[-1] else 0
        )
        for run in runs
    ]
    return EnqueuedCopies(moves, gpu.mover, order)
