"""What is asked for: two views become a plan, a request, and who sends or receives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.errors import CallError
from stretto.transfer.copying.work import Work
from stretto.transfer.memory.region import Region, View
from stretto.transfer.memory.tensors import GPU
from stretto.transfer.plans import Plan, Run, proved
from stretto.transfer.ports import PeerLike
from stretto.transfer.ways.staged import Receiving, Sending

__all__ = [
    "chunk_pages",
    "header_of",
    "num_pieces",
    "on_gpu_of",
    "planned",
    "receiving_of",
    "runs_of",
    "sending_of",
    "view_of",
]


def on_gpu_of(a: View, b: View) -> bool:
    """Return whether memory of ours lies on a GPU; without a peer, any of it."""
    ours = [view for view in (a, b) if view.region.peer is None]
    return any(view.region.kind == GPU for view in ours)


def sending_of(
    ring: Any, peer: PeerLike, number: int, works: list[Work], holds: object, *,
    checked: bool, is_direct: bool,
) -> Sending:  # fmt: skip
    """Return what sends a transfer: from a GPU by its ring."""
    if ring is None:
        return Sending(
            peer, number, works, checked=checked, is_direct=is_direct, holds=holds
        )
    from stretto.transfer.ways.gpu_stage import GpuSending

    return GpuSending(ring, peer, number, works, checked=checked, holds=holds)


def receiving_of(
    ring: Any, peer: PeerLike, works: list[Work], holds: object
) -> Receiving:
    """Return what receives a transfer: on a GPU by its ring."""
    if ring is None:
        return Receiving(peer, works, holds=holds)
    from stretto.transfer.ways.gpu_stage import GpuReceiving

    return GpuReceiving(ring, peer, works, holds=holds)


def chunk_pages(
    ours: View, runs: tuple[Run, ...]
) -> Callable[[], NDArray[np.int64]] | None:
    """Return what says in which pages of ours the chunks of a transfer lie."""
    if not ours.layout.is_paged:
        return None

    def pages() -> NDArray[np.int64]:
        some = [run.pages(ours.layout, ours.pages) for run in runs]
        return np.concatenate([np.zeros(0, np.int64), *some])

    return pages


def num_pieces(runs: tuple[Run, ...]) -> int:
    """Return how many runs of bytes there are."""
    return sum(len(r.src_at) * sum(box.rows for box in r.boxes) for r in runs)


def header_of(
    a: View, b: View, made: Plan, where: tuple[int, int], *, is_put: bool
) -> dict[str, Any]:
    """Return what the peer is told of a transfer."""
    ours, theirs = (a, b) if is_put else (b, a)
    return {
        "op": "put" if is_put else "get", "region": theirs.region.name,
        "layout": str(theirs.layout), "shift": theirs.shift,
        "other": str(ours.layout), "only": [list(r) for r in made.only],
        "tokens": _moved_tokens(a, b), "lease": list(where), "sum": False,
    }  # fmt: skip


def view_of(given: Any) -> View | None:
    """Return a view, of what is one or a region; None: it is an array."""
    if isinstance(given, View):
        return given
    return given.view if isinstance(given, Region) else None


def planned(a: View, b: View) -> Plan:
    """Return the plan between two views, of the parts that both pick."""
    ours, theirs = a.picks, b.picks
    if any(ours[name] != theirs[name] for name in ours.keys() & theirs.keys()):
        raise CallError(f"the two sides pick different parts: {a.ranges}, {b.ranges}")
    return proved(a.layout, b.layout, only={**ours, **theirs})


def runs_of(made: Plan, a: View, b: View) -> tuple[Run, ...]:
    """Return what is to be copied between two views."""
    return made.runs(a.pages, b.pages, _tokens_of(a, b), of=proved)


def _tokens_of(a: View, b: View) -> int | None:
    """Return how many tokens are asked for, where that is said."""
    some = {view.tokens for view in (a, b) if view.tokens is not None}
    if len(some) > 1:
        raise CallError(f"from the first {a.tokens} tokens to the first {b.tokens}")
    return some.pop() if some else None


def _moved_tokens(a: View, b: View) -> int | None:
    if not a.layout.is_paged:
        return None
    if (tokens := _tokens_of(a, b)) is not None:
        return tokens
    count = a.layout.num_pages if a.pages is None else len(a.pages)
    return count * a.layout.page_tokens
