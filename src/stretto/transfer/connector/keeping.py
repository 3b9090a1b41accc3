"""The prefill side of a scheduler: requests whose blocks rest until they are fetched.

A request gets its token when its blocks are allocated, and workers open a lease of it
in that step. So the lease is there, at every worker, before anybody can hear of it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from typing import Any

from stretto.transfer.regions.leases import MOST_TOKENS, new_token

_WELL = ("FINISHED_STOPPED", "FINISHED_LENGTH_CAPPED")


class Keeping:
    """See the module."""

    def __init__(self, keep_s: float) -> None:
        self._keep_s = keep_s
        self._free = deque(range(MOST_TOKENS))
        """Numbers of tokens, the one that was used last at the end."""
        self._tokens: dict[str, tuple[int, bytes]] = {}
        self._until: dict[str, float] = {}
        self._opened: dict[str, bytes] = {}
        self._closed: list[str] = []
        self._late: list[str] = []

    def open(self, request: str) -> None:
        """Have workers open a lease for a request, unless there are too many."""
        if request in self._tokens or not self._free:
            return
        number = self._free.popleft()
        self._tokens[request] = number, new_token(number)
        self._opened[request] = self._tokens[request][1]

    def keep(self, request: str) -> bytes:
        """Return the token of a request whose blocks rest from now on; b"": none."""
        found = self._tokens.get(request)
        if found is None or request in self._opened:  # no worker knows of it yet
            return b""
        self._until[request] = time.monotonic() + self._keep_s
        return found[1]

    def close(self, request: str) -> None:
        """Have workers end a lease that nobody was told of."""
        found = self._tokens.pop(request, None)
        if found is None:
            return
        self._free.append(found[0])
        if self._opened.pop(request, None) is None:
            self._closed.append(request)

    def wanted(self, requests: Iterable[str]) -> None:
        """Keep requests for a while longer: somebody said that it will fetch them."""
        until = time.monotonic() + self._keep_s
        for request in requests:
            if request in self._until:
                self._until[request] = until

    def sent(self, requests: Iterable[str]) -> None:
        """Forget requests whose leases have ended at all workers."""
        for request in requests:
            self._until.pop(request, None)
            found = self._tokens.pop(request, None)
            if found is not None:
                self._free.append(found[0])

    def expire(self) -> list[str]:
        """Return requests that nobody has fetched in time; workers will hear of it."""
        now = time.monotonic()
        late = [request for request, until in self._until.items() if until <= now]
        for request in late:
            del self._until[request]
        self._late += late
        return late

    def take(self) -> dict[str, Any]:
        """Return what workers are told in this step, once."""
        said = {
            "opened": self._opened, "closed": tuple(self._closed),
            "late": tuple(self._late),
        }  # fmt: skip
        self._opened, self._closed, self._late = {}, [], []
        return said

    @property
    def has_news(self) -> bool:
        """Return whether workers have to be told of something."""
        return bool(self._closed or self._late)


def ended_well(request: Any) -> bool:
    """Return whether a request has ended as it should, and was not aborted."""
    status = getattr(request, "status", None)
    return status is None or getattr(status, "name", str(status)) in _WELL
