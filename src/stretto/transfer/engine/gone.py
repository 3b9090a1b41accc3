"""Lost peers that may still write to our memory: until they have left, or have died."""

from __future__ import annotations

import time
from typing import Any

from stretto.transfer.ports import LoopLike

__all__ = ["Gone"]

_FIRST_S, _LAST_S = 0.01, 1.0


class Gone:
    """Whoever takes memory back waits for them; they are looked at ever more seldom."""

    def __init__(self, loop: LoopLike, lock: Any) -> None:
        self._loop, self.lock = loop, lock
        self._peers: list[Any] = []
        self._delay = _FIRST_S
        self._is_looking = False

    @property
    def peers(self) -> list[Any]:
        """Return those that may still write."""
        with self.lock:
            return list(self._peers)

    def add(self, peer: Any) -> None:
        """Keep a peer that is lost; `look` lets it go."""
        with self.lock:
            self._peers.append(peer)
            self._delay = _FIRST_S

    def look(self) -> None:
        """Let go those that write no more; look again while there are others."""
        with self.lock:
            over = [peer for peer in self._peers if peer.writes_no_more]
            self._peers = [peer for peer in self._peers if peer not in over]
            again = bool(self._peers) and not self._is_looking
            self._is_looking |= again
        for peer in over:
            peer.let_go()
        if again:
            self._delay = min(2 * self._delay, _LAST_S)
            self._loop.at(time.monotonic() + self._delay, self._look_again)

    def _look_again(self) -> None:
        self._is_looking = False
        self.look()
