"""A transfer by stages, as one engine asks another for it: packed, read and answered.

A request is a header in JSON, the pages' numbers, and, where all is small, the bytes
themselves.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.errors import CallError, LayoutError, StaleMemory
from stretto.transfer.copying.words import Mode
from stretto.transfer.copying.work import CopyWork
from stretto.transfer.layouts import Layout
from stretto.transfer.links.counterpart import Counterpart
from stretto.transfer.links.words import BY_WORK, STAGE_BYTES
from stretto.transfer.memory.board import Board
from stretto.transfer.memory.tensors import GPU
from stretto.transfer.plans import BoxRun, Plan, proved, split
from stretto.transfer.regions.region import Region, View
from stretto.transfer.ways.order import Order
from stretto.transfer.ways.staged import PART, Receiving, Sending

_HEAD = struct.Struct("=4I")
_MOST_HEADER = 1 << 16


def pack_request(
    header: dict[str, Any], pages: NDArray[np.int64] | None, data: bytes = b""
) -> bytes:
    """Return a request's bytes."""
    text = json.dumps(header, separators=(",", ":")).encode()
    numbers = b"" if pages is None else pages.tobytes()
    body = _HEAD.pack(len(text), len(numbers) // 8, len(data), pages is not None)
    body += text + numbers + data
    if len(text) > _MOST_HEADER or len(body) > STAGE_BYTES // 2:
        raise CallError(
            f"a transfer of {len(numbers) // 8} pages by stages; want fewer at once"
        )
    return body


def read_request(
    body: bytes,
) -> tuple[dict[str, Any], NDArray[np.int64] | None, memoryview]:
    """Return a request's header, pages and data; ValueError: it is none."""
    text, count, nbytes, has_pages = _HEAD.unpack_from(body)
    end = _HEAD.size + text + 8 * count
    if text > _MOST_HEADER or end + nbytes != len(body):
        raise ValueError("a request of other sizes than it says")
    header = json.loads(body[_HEAD.size : _HEAD.size + text])
    if not isinstance(header, dict):
        raise ValueError("a request without a header")
    pages = np.frombuffer(body, np.int64, count, _HEAD.size + text)
    return header, pages if has_pages else None, memoryview(body)[end:]


def header_of(order: Order) -> dict[str, Any]:
    """Return what the peer is told of a transfer."""
    ours, theirs = order.ours, order.theirs
    return {
        "op": "put" if order.is_put else "get", "region": theirs.region.name,
        "layout": str(theirs.layout), "shift": theirs.shift,
        "other": str(ours.layout), "only": [list(r) for r in order.plan.only],
        "tokens": _moved_tokens(order), "lease": list(order.where), "sum": False,
    }  # fmt: skip


def _moved_tokens(order: Order) -> int | None:
    src = order.src
    if not src.layout.is_paged:
        return None
    if order.tokens is not None:
        return order.tokens
    count = src.layout.num_pages if src.pages is None else len(src.pages)
    return count * src.layout.page_tokens


def sending_of(
    ring: Any, peer: Counterpart, number: int, works: list[CopyWork], holds: object, *,
    checked: bool, is_direct: bool = False,
) -> Sending:  # fmt: skip
    """Return what sends a transfer: from a GPU by its ring."""
    if ring is None:
        return Sending(
            peer, number, works, checked=checked, is_direct=is_direct, holds=holds
        )
    from stretto.transfer.ways.gpu_stage import GpuSending

    return GpuSending(ring, peer, number, works, checked=checked, holds=holds)


def receiving_of(
    ring: Any, peer: Counterpart, works: list[CopyWork], holds: object, *,
    is_direct: bool = False,
) -> Receiving:  # fmt: skip
    """Return what receives a transfer: on a GPU by its ring."""
    if ring is None:
        return Receiving(peer, works, is_direct=is_direct, holds=holds)
    from stretto.transfer.ways.gpu_stage import GpuReceiving

    return GpuReceiving(ring, peer, works, holds=holds)


def answer(
    board: Board, peer: Counterpart, number: int, region: Region,
    header: Mapping[str, Any], pages: NDArray[np.int64] | None,
    ring_of: Callable[[], Any],
) -> Sending | Receiving:  # fmt: skip
    """Return what does a transfer that a peer asks for; errors go to the peer."""
    is_put = header.get("op") == "put"
    if is_put and region.read_only:
        raise CallError(f"{region.name!r} is shared to be read only")
    slot, epoch = (int(x) for x in header["lease"])
    if not board.is_now(slot, epoch):
        raise StaleMemory(f"{region.name!r} was given to someone else meanwhile")
    view = _within(region, Layout(str(header["layout"])), int(header["shift"]))
    other = Layout(str(header["other"]))
    only = tuple((str(n), int(x), int(y)) for n, x, y in header["only"])
    src, dst = (other, view.layout) if is_put else (view.layout, other)
    made = proved(src, dst, only=only)
    tokens = None if header["tokens"] is None else int(header["tokens"])
    count = view.layout.num_pages if pages is None else len(pages)
    blank = _blank(other, tokens, count * view.layout.page_tokens)
    both = (blank, pages) if is_put else (pages, blank)
    runs = made.runs(*both, tokens, of=proved)
    ring = ring_of() if region.kind == GPU else None
    works = works_here(made, runs, view.addresses, ring, is_put=not is_put)
    for work in works:
        address = int(board.shared.address) + 8 * slot
        work.guard(peer.link.marks + 8 * BY_WORK, address, epoch)
    if is_put:
        direct = bool(header.get("direct"))
        return receiving_of(ring, peer, works, view, is_direct=direct)
    sending = sending_of(
        ring, peer, number, works, view, checked=bool(header.get("sum"))
    )
    sending.go(int(header.get("field", 0)))
    return sending


def works_here(
    made: Plan, runs: Sequence[BoxRun], at: Sequence[int], ring: Any, *, is_put: bool
) -> list[CopyWork]:
    """Return works between memory here and dense parts; on a GPU by its ring."""
    parts = split(made, runs, PART)
    mode = Mode.PACK if is_put else Mode.UNPACK
    if ring is None:
        return [CopyWork(made, run, at, at, mode=mode) for run in parts]
    from stretto.transfer.ways.gpu_stage import GpuWork

    return [GpuWork(ring, made, run, at, mode=mode) for run in parts]


def _blank(
    layout: Layout, tokens: int | None, most: int
) -> NDArray[np.int64] | None:  # fmt: skip
    """Return pages that stand for those of a memory that is not here.

    They are no more than what is here has tokens for, whatever a peer says.
    """
    if not layout.is_paged:
        return None
    if tokens is None or not 0 <= tokens <= most:
        raise CallError(f"tokens={tokens}; the pages hold {most}")
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
