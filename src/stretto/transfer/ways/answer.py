"""What an engine does for a peer: transfers that it asks for, and fences against it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.errors import CallError, LayoutError, StaleMemory, TransferTimeout
from stretto.meeting.limits import check_timeout
from stretto.transfer.copying.words import Mode
from stretto.transfer.copying.work import Work
from stretto.transfer.layouts import Layout
from stretto.transfer.links.link import functions
from stretto.transfer.links.words import BY_WORK
from stretto.transfer.memory.region import Region, View
from stretto.transfer.memory.tensors import GPU
from stretto.transfer.plans import Plan, Run, proved, split
from stretto.transfer.ports import EngineLike, PeerLike
from stretto.transfer.ways.staged import PART, Receiving, Sending

__all__ = ["answer", "fence_off", "works_here"]


def answer(
    engine: EngineLike, peer: PeerLike, number: int, region: Region,
    header: Mapping[str, Any], pages: NDArray[np.int64] | None,
) -> Sending | Receiving:  # fmt: skip
    """Return what does a transfer that a peer asks for; errors go to the peer."""
    is_put = header.get("op") == "put"
    if is_put and region.read_only:
        raise CallError(f"{region.name!r} is shared to be read only")
    slot, epoch = (int(x) for x in header["lease"])
    if not engine.board.is_now(slot, epoch):
        raise StaleMemory(f"{region.name!r} was given to someone else meanwhile")
    view = _within(region, Layout(str(header["layout"])), int(header["shift"]))
    other = Layout(str(header["other"]))
    only = tuple((str(n), int(x), int(y)) for n, x, y in header["only"])
    src, dst = (other, view.layout) if is_put else (view.layout, other)
    made = proved(src, dst, only=only)
    tokens = None if header["tokens"] is None else int(header["tokens"])
    blank = _blank(other, tokens)
    both = (blank, pages) if is_put else (pages, blank)
    runs = made.runs(*both, tokens, of=proved)
    mode = Mode.UNPACK if is_put else Mode.PACK
    ring = engine.gpu_ring(peer) if region.kind == GPU else None
    works = works_here(made, runs, view.addresses, mode, ring)
    for work in works:
        address = int(engine.board.shared.address) + 8 * slot
        work.guard(peer.link.marks + 8 * BY_WORK, address, epoch)
    if ring is not None:
        from stretto.transfer.ways.gpu_stage import GpuReceiving, GpuSending

        if is_put:
            return GpuReceiving(ring, peer, works, holds=view)
        summed = bool(header.get("sum"))
        return GpuSending(ring, peer, number, works, checked=summed, holds=view)
    if is_put:
        return Receiving(peer, works, is_direct=bool(header.get("direct")), holds=view)
    sending = Sending(peer, number, works, checked=bool(header.get("sum")), holds=view)
    sending.go(int(header.get("field", 0)))
    return sending


def works_here(
    made: Plan, runs: Sequence[Run], addresses: Sequence[int], mode: Mode, ring: Any
) -> list[Work]:
    """Return works between memory here and dense parts; on a GPU by its ring."""
    parts = split(made, runs, PART)
    if ring is None:
        return [Work(made, run, addresses, addresses, mode=mode) for run in parts]
    from stretto.transfer.ways.gpu_stage import GpuWork

    return [GpuWork(ring, made, run, addresses, mode=mode) for run in parts]


def fence_off(engine: EngineLike, epoch: int, timeout: float) -> None:
    """Wait until no peer says that it writes to memory of an epoch."""
    check_timeout(timeout, "taking memory back")
    call = functions()
    call.fence_now()
    until = time.monotonic() + timeout
    while epoch in engine.writing:
        if time.monotonic() > until:
            raise TransferTimeout(
                "the GPU still writes to memory that was taken back, after "
                f"{timeout:g} s; let the memory rest"
            )
        time.sleep(0.0001)
    for peer in engine.writers():
        while call.marked(peer.link.marks, epoch) and not peer.is_dead():
            if time.monotonic() > until:
                error = TransferTimeout(
                    f"engine {peer.name!r} still writes to memory that was taken "
                    f"back, after {timeout:g} s; let the memory rest, or end it"
                )
                error.peer = peer.name
                raise error
            time.sleep(0.0001)


def _blank(layout: Layout, tokens: int | None) -> NDArray[np.int64] | None:
    """Return pages that stand for those of a memory that is not here."""
    if not layout.is_paged:
        return None
    if tokens is None or not 0 <= tokens < 1 << 40:
        raise CallError(f"tokens={tokens}")
    return np.arange(-(-tokens // layout.page_tokens), dtype=np.int64)


def _within(region: Region, layout: Layout, shift: int) -> View:
    """Return a view of a region as a peer names it; CallError: it is none of it."""
    if layout == region.layout and not shift:
        return region.view
    axes = region.layout.axes
    plain = len(axes) == 1 and not region.layout.parts and not region.layout.is_paged
    if not plain or len(layout.axes) != 1 or layout.parts or layout.is_paged:
        raise LayoutError(f"{region.name!r} is {region.layout}; not {layout}")
    mine, theirs = axes[0], layout.axes[0]
    fits = (
        (mine.name, region.layout.dtype) == (theirs.name, layout.dtype)
        and 0 <= shift <= region.layout.part_bytes - layout.part_bytes
        and shift % max(1, mine.stride) == 0
        and theirs.stride % max(1, mine.stride) == 0
    )
    if not fits:
        raise LayoutError(f"{layout} from byte {shift} on is no part of {region!r}")
    return View(region=region, layout=layout, shift=shift)
