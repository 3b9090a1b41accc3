"""A request that is being fetched: nothing here waits, unless a layer is waited for."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator, Sequence
from typing import Any

from stretto.errors import StrettoError, TransferTimeout
from stretto.transfer.connector.groups import Pages, region_name
from stretto.transfer.connector.places import Peers
from stretto.transfer.connector.steps import Load
from stretto.transfer.layouts import Layout
from stretto.transfer.plans import deal
from stretto.transfer.regions.region import Region
from stretto.transfer.ways.pending import Pending
from stretto.transfer.ways.transfer import Transfer

_Begun = tuple[int, int, Transfer]
"""The group, the layer (-1: all), and what moves them."""


class Loading:
    """See the module."""

    def __init__(
        self, load: Load, regions: Sequence[Region], peers: Peers, deadline_s: float
    ) -> None:
        """`regions` are this worker's, by group."""
        self.load, self._regions = load, regions
        self._begun_at = time.monotonic()
        self._until = self._begun_at + deadline_s
        self._needed = [n for n, pages in enumerate(load.groups) if pages.local]
        self._reaching = [peers.reach(place) for place in load.engines]
        self._asked: list[tuple[int, list[Pending[Region]]]] = []
        self._transfers: list[_Begun] | None = None
        self._settled: set[int] = set()
        self.nbytes, self.seconds = 0, 0.0
        self.lost = {block for pages in load.groups for block in pages.lost}
        """Blocks of ours that hold nothing to rely on."""
        self.failed = bool(self.lost)
        self.is_dropped = self._is_over = False

    def advance(self) -> bool:
        """Go on as far as that needs no waiting; return whether it has ended."""
        if self._is_over:
            return True
        try:
            if self._transfers is None and not self._begin():
                self._check_time()
                return False
        except StrettoError:
            self._lose_all()
            return True
        assert self._transfers is not None, "it has begun"
        if not all(transfer.done() for _, _, transfer in self._transfers):
            return False
        for begun in self._transfers:
            self._settle(begun)
        self._is_over = True
        self.seconds = time.monotonic() - self._begun_at
        return True

    def wait_for(self, group: int, layer: int) -> None:
        """Return when a layer is here, or is known to have failed."""
        try:
            while not self._is_over and self._transfers is None:
                left = max(0.0, self._until - time.monotonic())
                for reaching in self._reaching:
                    reaching.wait(left)
                if self._begin():
                    break
                for _, asked in self._asked:
                    for pending in asked:
                        pending.wait(left)
        except StrettoError:
            self._lose_all()
        for begun in self._transfers or ():
            if begun[0] == group and begun[1] in (layer, -1):
                self._settle(begun)

    def drop(self) -> None:
        """Take it back; nothing arrives when this returns."""
        self.is_dropped = True
        for _, _, transfer in self._transfers or ():
            transfer.cancel()
        self._transfers, self._is_over = [], True

    # Inside.

    def _begin(self) -> bool:
        """Begin the transfers, when all that they need is known."""
        if not self._needed:
            self._transfers = []
            return True
        peers = [one.wait(0) for one in self._reaching if one.done()]
        if len(peers) < len(self._reaching):
            return False
        if not self._asked:
            self._asked = [
                (n, [peer.region(region_name(n)) for peer in peers])
                for n in self._needed
            ]
        if not all(pending.done() for _, asked in self._asked for pending in asked):
            return False
        self._transfers = []
        for group, asked in self._asked:
            theirs = [pending.wait(0) for pending in asked]
            for begun in self._start(group, theirs, self.load.groups[group]):
                self._transfers.append(begun)
        return True

    def _start(
        self, group: int, theirs: Sequence[Region], pages: Pages
    ) -> Iterator[_Begun]:
        """Begin what fetches a group: layer by layer where the step waits for it."""
        mine = self._regions[group]
        parts = _parts(tuple(region.layout for region in theirs), mine.layout)
        layers: Sequence[int] = (-1,)
        if self.load.waits:
            axis = mine.layout.axis("L")
            layers = range(axis.start, axis.stop)
        left = max(0.0, self._until - time.monotonic())
        for layer in layers:
            for nth, ranges in parts:
                only = dict(ranges)
                if layer >= 0:
                    low, high = only.get("L", (layer, layer + 1))
                    if not low <= layer < high:
                        continue
                    only["L"] = layer, layer + 1
                source = theirs[nth][list(pages.remote)].only(**only)
                target = mine[list(pages.local)].first(pages.tokens)
                how: dict[str, Any] = {"deadline": left, "lease": self.load.token}
                yield group, layer, source.get(target, **how)

    def _check_time(self) -> None:
        if time.monotonic() > self._until:
            raise TransferTimeout(f"request {self.load.request!r}: nobody answers")

    def _lose_all(self) -> None:
        for _, _, transfer in self._transfers or ():
            transfer.cancel()
        self._transfers, self._is_over, self.failed = [], True, True
        self.lost |= {block for pages in self.load.groups for block in pages.local}

    def _settle(self, begun: _Begun) -> None:
        group, _, transfer = begun
        if id(transfer) in self._settled:
            return
        try:
            stats = transfer.wait(max(0.0, self._until - time.monotonic()) + 1.0)
        except StrettoError as e:
            self.failed = True
            named = getattr(e, "blocks_failed", ())
            self.lost |= set(named or self.load.groups[group].local)
        else:
            self.nbytes += stats.nbytes
        self._settled.add(id(transfer))


@functools.lru_cache(maxsize=256)
def _parts(
    theirs: tuple[Layout, ...], mine: Layout
) -> tuple[tuple[int, tuple[tuple[str, tuple[int, int]], ...]], ...]:
    """Return which part of ours each of theirs has: ranges of axes."""
    dealt = deal(theirs, [mine])
    return tuple(
        (nth, tuple((name, (a, b)) for name, a, b in made.only))
        for (nth, _), plans in dealt.plans.items()
        for made in plans
    )
