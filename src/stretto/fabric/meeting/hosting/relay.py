"""A host's hub where the meeting's hub is on another one: it passes on what ranks say.

Frames go to the hub over one connection, with the number of the rank's connection here.
Descriptors cannot: the relay keeps those of each offer, and of each process, and hands
them to this host's ranks with what the hub answers.
"""

from __future__ import annotations

import os
import socket
import time
from collections import defaultdict, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from stretto.errors import WireError
from stretto.fabric.alive import BEAT_S
from stretto.fabric.faults import Fault
from stretto.fabric.forks import forget_in_children
from stretto.fabric.hosts import host_name
from stretto.fabric.loop import Loop
from stretto.fabric.meeting import messages
from stretto.fabric.meeting.last_words import LastWords
from stretto.fabric.meeting.messages import Beat, Cut, Offer, Result, Via
from stretto.fabric.messages import Hello, Lost, Verdict, Welcome
from stretto.fabric.notices import notify
from stretto.fabric.patience import CLOSING_S
from stretto.fabric.porch import Entry
from stretto.fabric.process import peer_uid, uid_refusal
from stretto.fabric.wire import Connection, Descriptor, Refused


@dataclass(slots=True)
class _Near:
    """A rank of this host."""

    connection: Connection
    identity: str = ""
    pidfd: tuple[Descriptor, ...] = ()
    is_closing: bool = False


@dataclass(slots=True)
class _Shelf:
    """The descriptors of one group's exchanges, in order."""

    offers: dict[str, deque[tuple[Descriptor, ...]]] = field(
        default_factory=lambda: defaultdict(deque)
    )
    taken: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    """By member, how many results it has had."""
    first: int = 0
    """The number of the oldest exchange that is kept."""

    def offer(self, identity: str, held: tuple[Descriptor, ...]) -> None:
        """Keep what a rank gives."""
        self.offers[identity].append(held)

    def of_result(
        self, identity: str, members: list[str]
    ) -> dict[str, tuple[Descriptor, ...]]:
        """Return what each rank here gave for the next result of one of them."""
        # Results come to each member in the order of the group's exchanges, but not to
        # all at once: a slow one may be several behind.
        nth = self.taken[identity] - self.first
        self.taken[identity] += 1
        found = {q: self.offers[q][nth] for q in members if len(self.offers[q]) > nth}
        while members and all(self.taken[q] > self.first for q in members):
            for q in members:
                if self.offers[q]:
                    self.offers[q].popleft()
            self.first += 1
        return found


class Relay:
    """Serves the ranks of this host, in a thread, until there are none."""

    def __init__(
        self, upstream: Connection, host: str, listener: socket.socket,
        end: Callable[[Fault | None], None],
    ) -> None:  # fmt: skip
        """Relay to the hub, which is on another host, for who comes to a socket."""
        self._upstream, self._host, self._on_end = upstream, host_name(host), end
        self._near: dict[int, _Near] = {}
        self._next = 0
        self._shelves: dict[str, _Shelf] = defaultdict(_Shelf)
        self._members: dict[str, tuple[str, ...]] = {}
        """Who the members of each group are, in its order."""
        self._rosters: dict[int, tuple[str, ...]] = {}
        self._home, self._last_words = "", LastWords.new()
        self.loop = Loop("stretto-relay")
        self._entry: Entry | None = Entry(self.loop, listener, self._take)
        # Whoever has this connection has proved himself to the hub's door: no stranger.
        self._is_up, self._is_answered = True, True
        upstream.trust()
        upstream.keep_alive(beats=True)
        self.loop.watch(upstream, self._hear_hub, fault=self._fail)
        forget_in_children(self)
        self._beat()

    def start(self) -> Loop:
        """Have a thread serve it until it is finished; return the loop of that."""
        self.loop.on_fault = self._fail
        self.loop.start(lambda: self.is_finished, self.close)
        return self.loop

    def _fail(self, error: Exception) -> None:
        """Even an error of ours must not leave them waiting."""
        text = f"the relay of this host failed: {type(error).__name__}: {error}"
        notify(f"pid {os.getpid()}: {text}")
        verdict = Verdict(group="", error="RendezvousError", text=text, blamed=())
        for near in self._near.values():
            with suppress(OSError, WireError):
                near.connection.post(messages.to_body(verdict))
        self.loop.stop()

    def adopt(self, sock: socket.socket) -> None:
        """Take a connection of a rank of this host."""
        number, self._next = self._next, self._next + 1
        near = self._near[number] = _Near(Connection(sock))
        near.connection.trust()

        def odd(error: Exception) -> None:
            self._lose(number, f"could not be served ({type(error).__name__}: {error})")

        self.loop.watch(near.connection, partial(self._hear, number), fault=odd)

    @property
    def is_finished(self) -> bool:
        """Whether nobody is left to serve."""
        return (self._entry is None or bool(self._rosters)) and not self._near

    def _end(self, number: int) -> None:
        """End a connection, once what is still to be sent on it has gone."""
        near = self._near.get(number)
        if near is not None and near.connection.is_sending:
            near.is_closing = True
            late = partial(self._drop, number)
            self.loop.at(time.monotonic() + CLOSING_S, late)
        elif near is not None:
            self._drop(number)

    def _beat(self) -> None:
        """Say now and then that we are there; one that is not answered is enough."""
        if self._is_answered:
            self._is_answered = False
            self._say(Beat())
        if self._is_up:
            self.loop.at(time.monotonic() + BEAT_S, self._beat)

    def _take(self, sock: socket.socket, source: str) -> None:
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
        # What is no message would end the hub's connection with all of this host.
        for frame in frames:
            message = messages.read(frame)
            if isinstance(frame, Refused) or isinstance(message, Refused):
                self._lose(number, "sent what is no message")
                return
            if isinstance(message, Hello):
                near.identity, near.pidfd = message.identity, frame.descriptors[:1]
            elif isinstance(message, Offer):
                self._keep(near, message, frame.descriptors)
            self._say(Via(link=number, body=dict(frame.body)))
        if near.is_closing and not near.connection.is_sending:
            self._drop(number)
        self.loop.mind(near.connection)

    def _keep(self, near: _Near, offer: Offer, held: tuple[Descriptor, ...]) -> None:
        """Keep the descriptors of an offer, for the result of all members' offers."""
        order = self._rosters.get(offer.generation, ())
        if all(
            0 <= rank < len(order) for rank in offer.members
        ):  # else: the hub's word
            self._members[offer.group] = tuple(order[r] for r in offer.members)
            self._shelves[offer.group].offer(near.identity, held)

    def _lose(self, number: int, why: str) -> None:
        if number in self._near:
            self._drop(number)
            self._say(Cut(link=number, why=why))

    def _drop(self, number: int) -> None:
        near = self._near.pop(number, None)
        if near is not None:
            self.loop.unwatch(near.connection)
            near.connection.close()

    def _say(self, message: Via | Cut | Beat) -> None:
        if not self._is_up:
            return
        try:
            self._upstream.post(messages.to_body(message))
        except (OSError, WireError) as e:
            self._hub_is_gone(str(e))
            return
        self.loop.mind(self._upstream)

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
                    self._end(link)
                case Beat():
                    self._is_answered = True
                case _:
                    self._hub_is_gone("it sent what is no message")
                    return
        if self._is_up:
            self.loop.mind(self._upstream)

    def _tell(self, number: int, body: dict[str, Any]) -> None:
        near = self._near.get(number)
        message = messages.from_body(body)
        if near is None or isinstance(message, Refused):
            return
        held: tuple[Descriptor, ...] = ()
        match message:
            case Welcome():
                held, body = self._welcome(near.identity, message, body)
            case Verdict(group=""):
                fault = Fault(
                    error=message.error, text=message.text, blamed=message.blamed
                )
                self._stop_listening(fault)
            case Result(group=group):
                held, body = self._with_descriptors(near.identity, group, body)
        with suppress(OSError, WireError, ValueError):
            near.connection.post(body, held)
        self.loop.mind(near.connection)

    def _welcome(
        self, identity: str, welcome: Welcome, body: dict[str, Any]
    ) -> tuple[tuple[Descriptor, ...], dict[str, Any]]:
        """Give a welcome the pidfds of this host's ranks, where all have one."""
        if not welcome.stays_open:
            self._stop_listening(None)
        self._home, order = welcome.home, welcome.identities
        self._rosters[welcome.generation] = order
        # All or none: a rank that watches some would take the others for watched, too.
        near = {n.identity: n.pidfd for n in self._near.values() if n.identity in order}
        if identity not in near or not all(near.values()):
            return (), {**body, "watched": []}
        watched = [rank for rank, one in enumerate(order) if one in near]
        held = tuple(near[order[rank]][0] for rank in watched)
        return self._last_words.with_file(held), {**body, "watched": watched}

    def _with_descriptors(
        self, identity: str, group: str, body: dict[str, Any]
    ) -> tuple[tuple[Descriptor, ...], dict[str, Any]]:
        """Give a result the descriptors of this host's ranks, and no others."""
        members = self._members[group]
        here = {near.identity for near in self._near.values()} | {identity}
        near = [q for q in members if q in here]
        given = self._shelves[group].of_result(identity, near)
        counts = [len(given.get(q, ())) for q in members]
        held = tuple(d for q in members for d in given.get(q, ()))
        return held, {**body, "counts": counts}

    # Ending.

    def _stop_listening(self, fault: Fault | None) -> None:
        if self._entry is not None:
            self._entry.close()
            self._entry = None
            self._on_end(fault)

    def _hub_is_gone(self, why: str) -> None:
        """Tell this host's ranks that they have lost the one that hosts the hub."""
        if not self._is_up:
            return
        self._is_up = False
        self.loop.unwatch(self._upstream)
        self._upstream.close()
        how = f"on {self._host} cannot be reached: {why}"
        # Before the ranks have met they only see the connection end, and say so.
        met = bool(self._rosters)
        self._stop_listening(None)
        lost = messages.to_body(Lost(identity=self._home, how=how))
        for number, near in list(self._near.items()):
            if met and not near.is_closing:
                with suppress(OSError, WireError):
                    near.connection.post(lost)
            self._end(number)

    def close(self) -> None:
        """End all connections; whoever is still there sees it."""
        self._stop_listening(None)
        if self._is_up:
            self._is_up = False
            self._upstream.close()
        for number in list(self._near):
            self._drop(number)
        self._last_words.close()
        self.loop.close()

    def forget(self) -> None:
        """Close what a forked child has of it."""
        if self._entry is not None:
            self._entry.forget()
        self._upstream.close()
        for near in self._near.values():
            near.connection.close()
        self._last_words.close()
