"""Ranks on other hosts: the way to them, and what they say of where they are.

There is no memory in common, so a rank that waits for long tells the others, by the
hop, which call or exchange it is in: two lines and the call's words, in a page of each
peer's slab. `FarSlab` reads such a page as `Slab` reads a slab.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.executors import Group, Launch, far_ranks
from stretto.executors.cpu.shared.slab import FAR_PAGE, LINE, NEVER, Slab, SlabLayout
from stretto.executors.cpu.shared.wakers import Wakers
from stretto.executors.cpu.words import Common
from stretto.fabric import hop

__all__ = ["FarHosts", "FarSlab"]

_TEXT = FAR_PAGE - 2 * LINE
_EXCHANGE_LINE = LINE


class FarSlab:
    """What a rank on another host has told this one."""

    address = 0

    def __init__(self, mine: Slab, rank: int) -> None:
        """Read the page of a rank in my slab."""
        page = mine.mapping.words(mine.layout.far(rank), FAR_PAGE // 8)
        self._call, self._exchange = page[:4], page[8:12]
        self._text = page[16:]
        self._call[0], self._exchange[0] = NEVER, 0  # what another said of before

    def call(self) -> tuple[int, int, int, int]:
        """Return the call it was in when it last said so."""
        epoch, fingerprint, source, target = self._call.tolist()
        return epoch, fingerprint, source, target

    def exchange(self) -> tuple[int, int]:
        """Return how many exchanges it had begun then, and the last's fingerprint."""
        begun, fingerprint, *_ = self._exchange.tolist()
        return begun, fingerprint

    def describe(self, fingerprint: int) -> str:
        """Return what a fingerprint of its means, if it was the last that it told."""
        raw = self._text.tobytes().rstrip(b"\0")
        number, _, text = raw.decode("ascii", "replace").partition(" ")
        if number == str(fingerprint):
            return text
        return f"a call whose name has not come (fingerprint {fingerprint:#x})"


class FarHosts:
    """A session's way to the ranks on other hosts."""

    def __init__(
        self, group: Group, layout: SlabLayout, mine: Slab, words: NDArray[np.int64]
    ) -> None:
        """Open it; `connect` follows when all have shared where they are."""
        self.peers = far_ranks(group)
        self._group, self._layout, self._mine, self._words = group, layout, mine, words
        self.wakers = Wakers()
        try:
            self._hop = hop.open_for(
                group,
                address=mine.address,
                puts=(layout.stage(), layout.nbytes),
                words=(layout.flags, layout.nbytes),
                wake=self.wakers.number,
            )
        except BaseException:
            self.wakers.close()
            raise
        self.share, self.faults = self._hop.share, self._hop.faults
        self._sent: list[NDArray[np.uint8]] = []
        self._due_s = 0.0

    def connect(self, shares: Sequence[Any], within_s: float) -> None:
        """Connect with the ranks on other hosts, or raise which is not there."""
        self._hop.connect(shares, self.peers, within_s)
        self._hop.write_calls(self._words, Common.HOP)

    def tell(self) -> None:
        """Tell the others which call and exchange this rank is in."""
        page = self._layout.far(self._group.rank)
        call, begun = self._mine.call(), self._mine.exchange()
        spoken = begun[1] if begun[0] > 0 and call[0] == NEVER else call[1]
        text = f"{spoken} {self._mine.describe(spoken)}".encode("ascii", "replace")
        raw = np.frombuffer(text[:_TEXT].ljust(_TEXT, b"\0"), dtype=np.uint8)
        self._sent = [*self._sent[-8:], raw]
        for peer in self.peers:
            here = page
            self._hop.put(peer, 0, raw.ctypes.data, here + 2 * LINE, _TEXT)
            self._hop.signal(peer, 0, here, call[0], here + 8, call[1:])
            line = here + _EXCHANGE_LINE
            self._hop.signal(peer, 0, line, begun[0], line + 8, (begun[1], 0, 0))

    def tending(self, launch: Launch) -> Launch:
        """Return a launch that also looks after the connections, where they need it.

        Whoever waits for long does so anyway (faults.py); some ranks never do.
        """
        if self._hop.tended_s == math.inf:
            return launch

        def run(x: Any, out: Any) -> None:
            launch(x, out)
            now = time.monotonic()
            if now > self._due_s:
                self._due_s = now + self._hop.tended_s
                self.faults()

        return run

    @property
    def carrier(self) -> str:
        """Return by what bytes go to other hosts."""
        return self._hop.carrier.name

    def close(self) -> None:
        """End the connections."""
        self._words[Common.HOP] = 0
        self._words[Common.WAKERS] = 0
        self._hop.close()
        self.wakers.close()
