"""A host's hub where the meeting's hub is on another one: it passes on what ranks say.

Frames go to the hub over one connection, with the number of the rank's connection here.
Descriptors cannot: the relay keeps those of each offer, and of each process, and hands
them to this host's ranks with what the hub answers.
"""

from __future__ import annotations

import os
import selectors
import socket
import time
from collections import defaultdict, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from stretto.errors import WireError
from stretto.meeting import messages
from stretto.meeting.alive import BEAT_S
from stretto.meeting.faults import Fault
from stretto.meeting.forks import forget_in_children
from stretto.meeting.hosting.loop import dispatch
from stretto.meeting.messages import (
    Beat,
    Cut,
    Hello,
    Lost,
    Offer,
    Result,
    Verdict,
    Via,
    Welcome,
)
from stretto.meeting.process import host_name, peer_uid, uid_refusal
from stretto.meeting.wire import Connection, Descriptor, Refused

__all__ = ["Relay"]

_CLOSING_S = 2.0


@dataclass(slots=True)
class _Near:
    """A rank of this host."""

    connection: Connection
    rank: int = -1
    pidfd: tuple[Descriptor, ...] = ()
    closing_since: float | None = None


@dataclass(slots=True)
class _Shelf:
    """The descriptors of one group's exchanges, in order."""

    offers: dict[int, deque[tuple[Descriptor, ...]]] = field(
        default_factory=lambda: defaultdict(deque)
    )
    taken: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    """By rank, how many results it has had."""
    first: int = 0
    """The number of the oldest exchange that is kept."""

    def offer(self, rank: int, held: tuple[Descriptor, ...]) -> None:
        """Keep what a rank gives."""
        self.offers[rank].append(held)

    def of_result(
        self, rank: int, members: list[int]
    ) -> dict[int, tuple[Descriptor, ...]]:
        """Return what each rank here gave for the next result of one of them."""
        nth = self.taken[rank] - self.first
        self.taken[rank] += 1
        found = {q: self.offers[q][nth] for q in members if len(self.offers[q]) > nth}
        while members and all(self.taken[q] > self.first for q in members):
            for q in members:
                if self.offers[q]:
                    self.offers[q].popleft()
            self.first += 1
        return found


class Relay:
    """Serves the ranks of this host; `step` again and again until `is_finished`."""

    def __init__(
        self, upstream: Connection, host: str, listener: socket.socket,
        end: Callable[[Fault | None], None],
    ) -> None:  # fmt: skip
        """Relay to the hub, which is on another host, for who comes to a socket."""
        self._upstream, self._host, self._on_end = upstream, host_name(host), end
        self._near: dict[int, _Near] = {}
        self._next = 0
        self._shelves: dict[str, _Shelf] = defaultdict(_Shelf)
        self._members: dict[str, tuple[int, ...]] = {}
        self._listener: socket.socket | None = listener
        self._selector = selectors.DefaultSelector()
        self._is_up, self._is_answered = True, True
        self._beat_at = time.monotonic()
        upstream.trust()
        upstream.keep_alive(beats=True)
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ, self._accept)
        self._selector.register(upstream, selectors.EVENT_READ, self._hear_hub)
        forget_in_children(self)

    def adopt(self, sock: socket.socket) -> None:
        """Take a connection of a rank of this host."""
        number, self._next = self._next, self._next + 1
        near = self._near[number] = _Near(Connection(sock))
        near.connection.trust()
        self._selector.register(
            near.connection, selectors.EVENT_READ, lambda: self._hear(number)
        )

    @property
    def is_finished(self) -> bool:
        """Whether nobody is left to serve."""
        return self._listener is None and not self._near

    def step(self, timeout_s: float | None = None) -> None:
        """Wait for something to happen, at most so long, and deal with it."""
        closing = any(near.closing_since is not None for near in self._near.values())
        patience = 0.05 if closing else BEAT_S
        dispatch(self._selector, min(patience, timeout_s or patience))
        now = time.monotonic()
        self._beat(now)
        for number, near in list(self._near.items()):
            if near.closing_since is None:
                continue
            sent = not near.connection.is_sending
            if sent or now - near.closing_since > _CLOSING_S:
                self._drop(number)

    def _beat(self, now: float) -> None:
        """Say now and then that we are there; one that is not answered is enough."""
        if self._is_answered and now >= self._beat_at:
            self._is_answered, self._beat_at = False, now + BEAT_S
            self._say(Beat())

    def _accept(self) -> None:
        assert self._listener is not None, "it is in the selector"
        try:
            sock, _ = self._listener.accept()
        except OSError:
            time.sleep(1e-3)
            return
        if uid_refusal(peer_uid(sock), os.getuid()) is None:
            self.adopt(sock)
        else:
            sock.close()

    # What ranks of this host say.

    def _hear(self, number: int) -> None:
        near = self._near.get(number)
        if near is None:
            return
        try:
            near.connection.flush()
            frames = near.connection.receive()
        except (EOFError, OSError):
            self._lose(number, "died: its connection ended")
            return
        for frame in frames:
            message = messages.read(frame)
            if isinstance(frame, Refused) or isinstance(message, Refused):
                self._lose(number, "sent what is no message")
                return
            if isinstance(message, Hello):
                near.rank, near.pidfd = message.rank, frame.descriptors[:1]
            elif isinstance(message, Offer):
                self._members[message.group] = message.members
                self._shelves[message.group].offer(near.rank, frame.descriptors)
            self._say(Via(link=number, body=dict(frame.body)))
        self._mind(near.connection, self._near_callback(number))

    def _lose(self, number: int, why: str) -> None:
        if number in self._near:
            self._drop(number)
            self._say(Cut(link=number, why=why))

    def _drop(self, number: int) -> None:
        near = self._near.pop(number)
        self._selector.unregister(near.connection)
        near.connection.close()

    def _say(self, message: Via | Cut | Beat) -> None:
        if not self._is_up:
            return
        try:
            self._upstream.post(messages.to_body(message))
        except (OSError, WireError) as e:
            self._hub_is_gone(str(e))
            return
        self._mind(self._upstream, self._hear_hub)

    # What the hub says.

    def _hear_hub(self) -> None:
        if not self._is_up:
            return
        try:
            self._upstream.flush()
            frames = self._upstream.receive()
        except (EOFError, OSError) as e:
            self._hub_is_gone(str(e) or "it ended the connection")
            return
        for frame in frames:
            message = messages.read(frame)
            match message:
                case Via(link=link, body=body):
                    self._tell(link, body)
                case Cut(link=link):
                    if link in self._near:
                        self._near[link].closing_since = time.monotonic()
                case Beat():
                    self._is_answered = True
                case _:
                    self._hub_is_gone("it sent what is no message")
                    return
        if self._is_up:
            self._mind(self._upstream, self._hear_hub)

    def _tell(self, number: int, body: dict[str, Any]) -> None:
        near = self._near.get(number)
        message = messages.from_body(body)
        if near is None or isinstance(message, Refused):
            return
        held: tuple[Descriptor, ...] = ()
        match message:
            case Welcome():
                self._stop_listening(None)
                known = sorted(
                    (other for other in self._near.values() if other.pidfd),
                    key=lambda other: other.rank,
                )
                if len(known) == len(self._near):
                    held = tuple(other.pidfd[0] for other in known)
                    body = {**body, "watched": [other.rank for other in known]}
                else:
                    body = {**body, "watched": []}
            case Verdict(group=""):
                fault = Fault(
                    error=message.error, text=message.text, blamed=message.blamed
                )
                self._stop_listening(fault)
            case Result(group=group):
                held, body = self._with_descriptors(near.rank, group, body)
        with suppress(OSError, WireError, ValueError):
            near.connection.post(body, held)
        self._mind(near.connection, self._near_callback(number))

    def _with_descriptors(
        self, rank: int, group: str, body: dict[str, Any]
    ) -> tuple[tuple[Descriptor, ...], dict[str, Any]]:
        """Give a result the descriptors of this host's ranks, and no others."""
        members = self._members[group]
        here = {near.rank for near in self._near.values()} | {rank}
        near = [q for q in members if q in here]
        given = self._shelves[group].of_result(rank, near)
        counts = [len(given.get(q, ())) for q in members]
        held = tuple(d for q in members for d in given.get(q, ()))
        return held, {**body, "counts": counts}

    def _near_callback(self, number: int) -> Callable[[], None]:
        return lambda: self._hear(number)

    def _mind(self, connection: Connection, callback: Callable[[], None]) -> None:
        """Watch for room to send while something waits to be sent."""
        wanted = selectors.EVENT_READ
        if connection.is_sending:
            wanted |= selectors.EVENT_WRITE
        with suppress(KeyError, ValueError):
            self._selector.modify(connection, wanted, callback)

    # Ending.

    def _stop_listening(self, fault: Fault | None) -> None:
        if self._listener is not None:
            self._selector.unregister(self._listener)
            self._listener.close()
            self._listener = None
            self._on_end(fault)

    def _hub_is_gone(self, why: str) -> None:
        """Tell this host's ranks that they have lost the one that hosts the hub."""
        if not self._is_up:
            return
        self._is_up = False
        self._selector.unregister(self._upstream)
        self._upstream.close()
        how = f"on {self._host} cannot be reached: {why}"
        met = self._listener is None
        self._stop_listening(None)
        lost = messages.to_body(Lost(rank=0, how=how))
        for near in self._near.values():
            if met and near.closing_since is None:
                with suppress(OSError, WireError):
                    near.connection.post(lost)
            near.closing_since = time.monotonic()

    def refuse_all(self, text: str) -> None:
        """Tell everybody that there is no meeting any more."""
        verdict = Verdict(group="", error="RendezvousError", text=text, blamed=())
        for near in self._near.values():
            with suppress(OSError, WireError):
                near.connection.post(messages.to_body(verdict))

    def close(self) -> None:
        """End all connections; whoever is still there sees it."""
        self._stop_listening(None)
        if self._is_up:
            self._is_up = False
            self._upstream.close()
        for near in self._near.values():
            near.connection.close()
        self._near.clear()
        self._selector.close()

    def forget(self) -> None:
        """Close what a forked child has of it."""
        if self._listener is not None:
            self._listener.close()
        self._upstream.close()
        for near in self._near.values():
            near.connection.close()
        self._selector.close()
