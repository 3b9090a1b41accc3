"""Handing on what has come so far: how far a version is, and who waits for more.

What a rank holds is a line of bytes, its tensors in the order of its manifest, each by
rows. A version is made, or read, in the order of that line, so how much of it is here
is one number. Who reads from us meanwhile is told that number as it grows, and reads no
further; when all is here, by a replica compared and switched to, he is told the sums,
and not before does his replica switch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from stretto.errors import EngineLost, TransferError, TransferTimeout
from stretto.program.collectives import storage
from stretto.weights.boxes import Box, volume
from stretto.weights.manifest import Manifest

__all__ = ["FAILED", "Following", "RowLine", "nobody"]

FAILED = -1
"""How far a version is that will not come."""
_LOOK_S = 0.1
_STEPS = 32
"""A source tells so often how far its snapshot is, or less often."""


def nobody(*_: object, **__: object) -> None:
    """Tell nobody: where nothing is followed, or handed on early."""


class RowLine:
    """Where each row of what a rank holds begins, in bytes, and where it all ends."""

    def __init__(self, manifest: Manifest) -> None:
        self._begins: dict[tuple[str, Box], tuple[int, int]] = {}
        self.ends: list[int] = []
        """Where each part ends, in the order of the manifest."""
        begin = 0
        for held in manifest.held:
            row = storage(held.dtype).itemsize * volume(held.box[1:])
            self._begins[held.name, held.box] = begin, row
            begin += row * (held.extent[0] if held.box else 1)
            self.ends.append(begin)
        self.end = begin

    @property
    def steps(self) -> Iterator[int]:
        """Yield ends of parts that are far enough from one another to be told of."""
        told = 0
        for end in self.ends:
            if end == self.end or end - told >= self.end // _STEPS:
                told = end
                yield end

    def span(self, name: str, held: Box, box: Box) -> tuple[int, int]:
        """Return the bytes that the rows of a box take, of a part that is held."""
        begin, row = self._begins[name, held]
        if not box:
            return begin, begin + row
        first = held[0][0]
        return begin + (box[0][0] - first) * row, begin + (box[0][1] - first) * row


class Following:
    """How far those are that we read from while they read, as they say."""

    def __init__(self, changed: Any, send: Callable[..., None]) -> None:
        self._changed, self._send = changed, send
        self._far: dict[tuple[str, bytes], int] = {}

    def watch(self, peer: Any, token: bytes) -> None:
        """Ask a peer to say how far it is."""
        with self._changed:
            self._far[peer.identity, token] = 0
        self._send(peer, "watch", token=token.hex())

    def forget(self, peer: Any, token: bytes) -> None:
        """Listen no more."""
        with self._changed:
            self._far.pop((peer.identity, token), None)

    def hear(self, peer: Any, body: Mapping[str, Any]) -> None:
        """Note how far a peer is; what nobody here waits for is of no use."""
        key = peer.identity, bytes.fromhex(str(body["token"]))
        if key in self._far:
            self._far[key] = int(body["far"])

    def has(self, peer: Any, token: bytes, need: int) -> bool:
        """Return whether a peer is so far; raise when it will not be."""
        far = self._far[peer.identity, token]
        if far == FAILED:
            raise TransferError(
                f"engine {peer.name!r} handed on what was to come, and that failed"
            )
        return far >= need

    def wait(
        self, peer: Any, token: bytes, need: int, within_s: float,
        check: Callable[[], None],
    ) -> None:  # fmt: skip
        """Wait until a peer is so far; raise when it will not be."""
        until = time.monotonic() + within_s
        with self._changed:
            while not self.has(peer, token, need):
                check()
                if peer.lost:
                    raise EngineLost(f"engine {peer.name!r} is gone: {peer.lost}")
                if time.monotonic() > until:
                    raise TransferTimeout(
                        f"engine {peer.name!r} hands on what is to come, and has come "
                        f"no further than byte {self._far[peer.identity, token]} "
                        f"within {within_s} s"
                    )
                self._changed.wait(_LOOK_S)
