"""Ask a member of a source or a replica who is there, and which versions they have."""

from __future__ import annotations

import queue
from collections.abc import Mapping
from typing import Any

from stretto.errors import CallError, TransferTimeout
from stretto.transfer import Engine

__all__ = ["show"]

_PREFIX = "weights/"
_Rows = list[dict[str, Any]]


class _Asking:
    """Waits for an answer on a topic."""

    def __init__(self) -> None:
        self.answer: queue.SimpleQueue[_Rows] = queue.SimpleQueue()

    def came(self, peer: Any) -> None:
        """Ask nobody by itself."""

    def heard(self, peer: Any, body: Mapping[str, Any]) -> None:
        """Take the answer; hellos are not for who only asks."""
        if body["is"] == "shown":
            self.answer.put([dict(row) for row in body["rows"]])

    def lost(self, peer: Any) -> None:
        """Wait no more."""
        self.answer.put([])


def show(engine: Engine, where: str, name: str = "", timeout: float = 10.0) -> _Rows:
    """Return what an engine knows of weights: a row for each rank of each member.

    Without a name, of all weights of which it has a copy that can be read.
    """
    peer = engine.connect(where).wait(timeout)
    some = {n.split("/")[1] for n in peer.names if n.startswith(_PREFIX)}
    names = [name] if name else sorted(some)
    if not names:
        raise CallError(
            f"engine {peer.name!r} shares no weights yet; pass their name to ask still"
        )
    found = []
    for one in names:
        asking = _Asking()
        topic = _PREFIX + one
        engine.follow(topic, asking)
        try:
            peer.send(topic, {"is": "show"})
            rows = asking.answer.get(timeout=timeout)
        except queue.Empty:
            raise TransferTimeout(
                f"engine {peer.name!r} says nothing of weights {one!r} within "
                f"{timeout} s"
            ) from None
        finally:
            engine.unfollow(topic)
        found += [{"weights": one, **row} for row in rows]
    return found
