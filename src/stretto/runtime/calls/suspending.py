"""What a communicator's calls work in, put aside: `comm.suspend()`, `comm.resume()`.

An engine that sleeps, or that trains between two generations, wants the memory of its
communicators, and then the same communicators again: addresses stay reserved, so plans,
kernels and captured graphs are true when the memory is back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stretto.errors import CallError
from stretto.executors import Session
from stretto.runtime.calls.logs import say_memory

Place = tuple[Any, ...]
"""Whose session: ("",) and its executor, or of two ranks ("pair", source, target)."""


def memory(self: Any) -> dict[str, dict[str, int]]:
    """Return the bytes that this rank holds for calls here, by executor and use.

    "staging" is what calls work in, "registered" what `empty()` gave out and has kept;
    on GPUs "control" is what stays while it is suspended, and "saved on the host" what
    registered memory held. Nothing is exchanged, and peers' memory is not counted.

    >>> comm.memory()  # doctest: +SKIP
    {'cpu': {'staging': 4194304, 'registered': 0}}
    """
    self._ready_to("memory")
    found: dict[str, dict[str, int]] = {}
    for place, session in _sessions(self):
        held = found.setdefault(place[-1], {})
        for use, nbytes in session.memory().items():
            held[use] = held.get(use, 0) + nbytes
    return found


def suspend(self: Any) -> None:
    """Give the memory of calls back until `resume()` (collective).

    Calls in between are refused; a graph that is replayed meanwhile faults on the GPU.
    Arrays of `empty()` keep what they hold: on CPUs where they are, on GPUs in the
    host's memory, and nobody may touch them before `resume()`. Arrays of your own that
    are registered stay. Parts made by `split()` are communicators of their own.

    Raises: `CallError` on all ranks, and nothing is given back, where a rank cannot.
    """
    if self._suspended:
        raise CallError(f"rank {self.rank}: suspend: this communicator is suspended")
    self._exchanging("suspend", lambda: _suspend(self))


def resume(self: Any) -> None:
    """Take the memory again, at the same addresses, on all ranks (collective).

    Plans, kernels, arrays of `empty()` and captured graphs are valid as before.

    Raises: `CallError` on all ranks where one finds no memory: they are suspended
    still, and may try again.
    """
    if not self._suspended:
        raise CallError(
            f"rank {self.rank}: resume: this communicator is not suspended; want "
            "suspend() before, on all ranks"
        )
    _put_aside(self, aside=False)
    try:
        self._exchanging("resume", lambda: _resume(self))
    except CallError:
        _put_aside(self, aside=True)
        raise


def _suspend(comm: Any) -> None:
    for channel in comm._channels.values():
        channel._ready("suspend")
    mine = _sessions(comm)
    why = [f"{p[-1]}: {w}" for p, s in mine if (w := s.keeps())]
    places = [list(place) for place, _ in mine]
    said = [m for m, _ in comm._group.exchange({"keeps": why[:1], "places": places})]
    for rank, one in enumerate(said):
        if one["keeps"]:
            raise CallError(
                f"rank {comm.rank}: suspend: rank {rank} cannot give the memory of "
                f"{one['keeps'][0]}; nothing was given back"
            )
    held = sum(sum(s.memory().values()) for _, s in mine)
    comm._aside = [s for p, s in mine if _is_shared(p, said)]
    for session in comm._aside:
        session.suspend()
    comm._group.exchange({"suspended": True})  # it is free once nobody maps it
    say_memory(comm, "suspended", held, sum(sum(s.memory().values()) for _, s in mine))
    _put_aside(comm, aside=True)


def _resume(comm: Any) -> None:
    comm._group.exchange({"resume": True})  # nobody takes any before all want it
    back: list[Session] = []
    why = ""
    for session in comm._aside:  # all are tried: peers exchange in each of them
        try:
            session.resume()
            back.append(session)
        except CallError as e:
            why = why or str(e)
    said = [m["resumed"] for m, _ in comm._group.exchange({"resumed": why})]
    if refused := next(filter(None, said), ""):
        for session in back:
            session.suspend()
        raise CallError(f"rank {comm.rank}: {refused}")
    comm._aside = []
    held = sum(sum(s.memory().values()) for _, s in _sessions(comm))
    say_memory(comm, "resumed", 0, held)


def _sessions(comm: Any) -> list[tuple[Place, Session]]:
    """Return the open sessions with their places, in an order that all ranks have."""
    found: list[tuple[Place, Session]] = [
        (("", name), session) for name, session in comm._sessions.items()
    ]
    for pair, channel in sorted(comm._channels.items()):
        for name, session in sorted(channel._sessions.items()):
            found.append((("pair", *pair, name), session))
    return found


def _is_shared(place: Place, said: Sequence[Any]) -> bool:
    """Return whether all whom a session is for have opened it."""
    ranks = place[1:-1] or range(len(said))
    return all(list(place) in said[rank]["places"] for rank in ranks)


def _put_aside(comm: Any, *, aside: bool) -> None:
    """Send every call the long way, where it is refused, or let it be known again."""
    for runner in (comm, *comm._channels.values()):
        runner._suspended = aside
        runner._calls.clear()
        runner._choose_table()
