"""What peers say to rooms above: by topic, over the connections that there are.

A follower is told of each peer that is there or comes, of what it sends to the topic,
and of its end. All of it is told in the engine's thread and in that order, so that a
follower needs no lock against itself, and must not wait.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from stretto.errors import CallError
from stretto.transfer.engine.loop import LinkLoop


class Follows(Protocol):
    """Who follows a topic; whatever it raises ends the connection with that peer."""

    def came(self, peer: Any) -> None:
        """Hear that a peer is there."""

    def heard(self, peer: Any, body: Mapping[str, Any]) -> None:
        """Hear what a peer sends; it may be anything that JSON has."""

    def lost(self, peer: Any) -> None:
        """Hear that a peer is gone; `peer.lost` says why."""


class Topics:
    """Those of one engine; `present` returns the peers that are there."""

    def __init__(self, loop: LinkLoop, present: Callable[[], Sequence[Any]]) -> None:
        self._loop, self._present = loop, present
        self._followers: dict[str, Follows] = {}
        self._known: dict[str, set[Any]] = {}
        """The peers that the follower of each topic has been told of."""

    def follow(self, topic: str, follower: Follows) -> None:
        """Tell somebody of a topic from now on."""
        if topic in self._followers:
            raise CallError(f"topic {topic!r} is followed already; one at a time")
        self._known[topic] = set()
        self._followers[topic] = follower
        self._loop.call(self._introduce)

    def _introduce(self) -> None:
        for peer in self._present():
            if peer.ready.done() and not peer.lost:
                self.came(peer)

    def unfollow(self, topic: str) -> None:
        """Tell nobody of a topic any more."""
        self._followers.pop(topic, None)
        self._known.pop(topic, None)

    def came(self, peer: Any) -> None:
        """Tell all followers of a peer that they do not know."""
        for topic, follower in list(self._followers.items()):
            if peer not in self._known[topic]:
                self._known[topic].add(peer)
                follower.came(peer)

    def heard(self, peer: Any, topic: str, body: Mapping[str, Any]) -> None:
        """Tell the follower of a topic; what nobody follows is dropped."""
        follower = self._followers.get(topic)
        if follower is not None:
            follower.heard(peer, body)

    def lost(self, peer: Any) -> None:
        """Tell all who know a peer that it is gone."""
        self._loop.call(partial(self._gone, peer))

    def _gone(self, peer: Any) -> None:
        for topic, follower in list(self._followers.items()):
            if peer in self._known[topic]:
                self._known[topic].discard(peer)
                follower.lost(peer)
