"""What is asked for: two memories, the plan between them, and the way that it goes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.errors import CallError
from stretto.transfer.links.counterpart import Counterpart
from stretto.transfer.memory.tensors import GPU, STORE, addresses_of
from stretto.transfer.plans import BoxRun, Plan
from stretto.transfer.regions.leases import read_token
from stretto.transfer.regions.region import Begins, Region, View, matched
from stretto.transfer.ways.paths import Path, choose


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A transfer that is wanted; nothing of it has begun."""

    src: View
    dst: View
    peer: Counterpart | None
    """Whose one of them is; None: both are of this process."""
    is_put: bool
    path: Path
    checked: bool
    """Whether what arrives is compared with what was sent."""
    where: tuple[int, int]
    """The slot and the epoch under which it is stored."""
    plan: Plan
    runs: tuple[BoxRun, ...]
    tokens: int | None
    """How many are asked for, where that is said."""
    nbytes: int
    pieces: int
    """Runs of bytes that lie apart on either side."""
    src_at: list[int]
    dst_at: list[int]
    """Where the tensors of each begin."""

    @property
    def ours(self) -> View:
        """Return the memory of this process."""
        return self.src if self.is_put else self.dst

    @property
    def theirs(self) -> View:
        """Return the other one."""
        return self.dst if self.is_put else self.src

    @property
    def ours_at(self) -> list[int]:
        """Return where our tensors begin."""
        return self.src_at if self.is_put else self.dst_at

    def chunk_pages(self) -> NDArray[np.int64] | None:
        """Return in which pages of ours the chunks lie, in the order of their moves."""
        ours = self.ours
        if not ours.layout.is_paged:
            return None
        some = [run.pages(ours.layout, ours.pages) for run in self.runs]
        return np.concatenate([np.zeros(0, np.int64), *some])


def _views_of(engine: Begins, src: Any, dst: Any) -> tuple[View, View]:
    """Return two memories as views; an array is as much as the other side has."""
    a = src.view if isinstance(src, Region) else src
    b = dst.view if isinstance(dst, Region) else dst
    if not isinstance(a, View):
        if not isinstance(b, View):
            raise CallError("neither side of this transfer is shared by an engine")
        a = _wrapped(engine, a, b, written=False)
    elif not isinstance(b, View):
        b = _wrapped(engine, b, a, written=True)
    return a, b


def _wrapped(engine: Begins, given: Any, other: View, *, written: bool) -> View:
    layout, addresses, _, kind, pins = addresses_of(
        given, other.picked, "the array", written=written, is_exact=True
    )
    region = Region(
        name="an array", layout=layout, kind=kind, addresses=tuple(addresses),
        engine=engine, holds=given, pins=pins,
    )  # fmt: skip
    return View(region=region, layout=layout)


def order_of(
    engine: Begins, src: Any, dst: Any, *, lease: bytes = b"", checksum: bool = False
) -> Order:
    """Return what is to be done from one memory to another, as it was proved."""
    a, b = _views_of(engine, src, dst)
    peer, region, is_put = a.region.peer, a.region, False
    if (to := b.region.peer) is not None and peer is not None:
        raise CallError(
            f"from engine {peer.name!r} to engine {to.name!r}: one of them has to "
            "move it; this engine moves to and from its own memory"
        )
    if b.region.read_only:
        raise CallError(f"{b.region.name!r} is shared to be read only")
    kinds = a.region.kind, b.region.kind
    is_stored = STORE in kinds
    if is_stored and (kinds[0] == kinds[1] or peer is not None or to is not None):
        raise CallError(
            f"{a.region.name!r} to {b.region.name!r}: one of them has to be memory of "
            "this engine"
        )
    if kinds[0] != STORE and peer is None:
        peer, region, is_put = to, b.region, True
    converts = a.layout.dtype != b.layout.dtype
    if checksum and converts and not is_stored:
        raise CallError("checksum=True of elements that are converted on their way")
    both = matched(a, b)
    where = (region.slot, region.epoch) if peer is not None else (-1, 0)
    where = read_token(lease) if lease else where
    path = choose(
        peer, region, is_put=is_put, touched=converts or checksum,
        on_gpu=GPU in (kinds[not is_put], kinds[is_put] if peer is None else ""),
    )  # fmt: skip
    if peer is not None:
        peer.give_up()
    return Order(
        src=a, dst=b, peer=peer, is_put=is_put, path=path, checked=checksum,
        where=where, **both._asdict(),
    )  # fmt: skip
