"""Leases of a worker: blocks that rest until somebody has fetched them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from stretto.errors import TransferTimeout
from stretto.transfer.connector.stats import Stats
from stretto.transfer.connector.steps import DONE, HERE
from stretto.transfer.engine.engine import Engine
from stretto.transfer.regions.leases import Lease

_A_MOMENT = 0.001
"""Seconds for a peer to let go; who takes longer is asked again in the next step."""


@dataclass(slots=True)
class _Lent:
    token: bytes
    lease: Lease
    is_over: bool = False
    """Whether nobody has a right to it any more."""
    is_told: bool = False
    """Whether the scheduler said that the request has finished."""


class Lending:
    """See the module."""

    def __init__(self, engine: Engine, stats: Stats) -> None:
        self._engine, self.stats = engine, stats
        self._lent: dict[str, _Lent] = {}
        self._by_token: dict[bytes, str] = {}
        self._ending: list[Lease] = []
        """Those that nobody was told of."""
        self._wanted: set[str] = set()

    def open(self, requests: Mapping[str, bytes]) -> None:
        """Open leases, under tokens that the scheduler has made up."""
        for request, token in requests.items():
            if request in self._lent:
                self.close([request])
            self._lent[request] = _Lent(token, self._engine.lease(token))
            self._by_token[token] = request

    def close(self, requests: Iterable[str]) -> None:
        """End leases that nobody was told of; they are not named."""
        for request in requests:
            lent = self._lent.pop(request, None)
            if lent is not None:
                del self._by_token[lent.token]
                self._ending.append(lent.lease)
        self._ending = [lease for lease in self._ending if not _ended(lease)]

    def expire(self, requests: Iterable[str]) -> None:
        """End leases of requests that nobody fetched in time."""
        for request in requests:
            lent = self._lent.get(request)
            if lent is not None and not lent.is_over:
                lent.is_over = True
                self.stats.count("expired")

    def finished(self, requests: Iterable[str]) -> set[str]:
        """Return requests whose leases have ended, of those that were named to us.

        Nothing is read under them any more, and nothing will be.
        """
        for request in requests:
            lent = self._lent.get(request)
            if lent is not None:
                lent.is_told = True
        self._hear()
        sent = set()
        for request, lent in list(self._lent.items()):
            if lent.is_over and lent.is_told and _ended(lent.lease):
                del self._lent[request], self._by_token[lent.token]
                sent.add(request)
        return sent

    def wanted(self) -> frozenset[str]:
        """Return requests that somebody said, since this was asked, it wants."""
        said, self._wanted = frozenset(self._wanted), set()
        return said

    def _hear(self) -> None:
        """Take what others have said of tokens."""
        self._engine.loop.drain()
        counts = self._engine.counts
        for tag in list(counts.names):
            if not tag.startswith((DONE, HERE)):
                continue
            counts.take(tag, counts.waiting_for(tag))
            request = self._by_token.get(tag[len(DONE) :])
            if request is None:
                self.stats.count("late")
            elif tag.startswith(DONE):
                self._lent[request].is_over = True
            else:
                self._wanted.add(request)


def _ended(lease: Lease) -> bool:
    """Return whether nobody uses memory under a lease any more."""
    try:
        lease.end(_A_MOMENT)
    except TransferTimeout:
        return False
    return True
