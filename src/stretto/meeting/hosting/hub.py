"""The thin shell around `Rendezvous`: sockets in, events to it, its actions out.

Who hosts the meeting runs one: rank 0 in a thread, `spawn`'s parent in its loop. It
sleeps in one selector call and never waits for any single peer. Whatever comes on a
connection ends that connection at most. Entrances close when all have come.
"""

from __future__ import annotations

import os
import selectors
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from stretto.errors import WireError
from stretto.meeting import messages
from stretto.meeting.faults import Fault
from stretto.meeting.forks import forget_in_children
from stretto.meeting.hosting.ends import Channel, Closing, Entrance
from stretto.meeting.hosting.events import (
    Action,
    Closed,
    Died,
    Drop,
    Event,
    GiveUp,
    Heard,
    NoRoom,
    Send,
    Tick,
)
from stretto.meeting.hosting.loop import dispatch
from stretto.meeting.hosting.rendezvous import Rendezvous
from stretto.meeting.messages import Verdict
from stretto.meeting.process import (
    NO_ROOM,
    most_descriptors,
    peer_uid,
    uid_refusal,
)
from stretto.meeting.wire import (
    LONGEST_WAIT_S,
    Connection,
    Frame,
    Refused,
)

STRANGER_S = 5.0
"""How long a connection may stay without saying who it is."""
CLOSING_S = 2.0
"""How long a connection may take to read the last that it is told."""
MAX_STRANGERS = 256
NO_ROOM_S = 0.05
"""How long nobody is let in when this process can open no more descriptors."""


@dataclass(slots=True, kw_only=True)
class _Link:
    connection: Channel
    """One of our own is in the selector."""
    rank: int | None
    """Known from the start when it is our own child."""
    since: float
    closing_since: float | None = None


class Hub:
    """Serve one meeting; `step` again and again until `is_finished`."""

    def __init__(
        self,
        machine: Rendezvous,
        *,
        explain: Callable[[int], str | None] = lambda rank: None,
    ) -> None:
        self.machine = machine
        self.selector = selectors.DefaultSelector()
        """Others may register here too, with a callback as data."""
        self._explain = explain
        self._entrances: list[Entrance] = []
        self._links: dict[int, _Link] = {}
        self._next_link = 0
        self._relays: list[Closing] = []
        self._is_closed = False
        forget_in_children(self)

    def serve(
        self, listener: socket.socket, end: Callable[[Fault | None], None] | None = None
    ) -> None:
        """Take whoever comes to this socket; `end` is called once it is closed."""
        self.enter(Listener(self, listener, end))

    def enter(self, entrance: Entrance) -> None:
        """Have an entrance closed when the meeting is settled."""
        self._entrances.append(entrance)

    def keep(self, relay: Closing) -> None:
        """Close something when the hub closes."""
        self._relays.append(relay)

    @property
    def is_finished(self) -> bool:
        """Whether nobody is left to serve."""
        return self.machine.is_finished and not self._links

    def adopt(self, sock: socket.socket, rank: int | None = None) -> None:
        """Take a connection, of our own child where a rank is named."""
        number = self._next_link
        self._next_link += 1
        connection = Connection(sock)
        link = _Link(connection=connection, rank=rank, since=time.monotonic())
        self._links[number] = link
        self.selector.register(
            connection, selectors.EVENT_READ, partial(self._serve, number)
        )

    def adopt_far(self, channel: Channel) -> int:
        """Take a rank that a relay speaks for; return its number here."""
        number = self._next_link
        self._next_link += 1
        self._links[number] = _Link(
            connection=channel, rank=None, since=time.monotonic()
        )
        return number

    def hear_far(self, number: int, frame: Frame) -> None:
        """Take what a relay says for a rank."""
        link = self._links.get(number)
        if link is not None and link.closing_since is None:
            self._take(number, link, [frame])

    def end_far(self, number: int, why: str) -> None:
        """End a rank's part of a relay's connection."""
        self._end(number, why)

    @property
    def num_strangers(self) -> int:
        """How many are here that have not said who they are."""
        return sum(link.rank is None for link in self._links.values())

    def drop_oldest_stranger(self, but: int | None = None) -> bool:
        """End the connection that has been silent longest; return whether one was."""
        links = self._links.items()
        silent = [n for n, link in links if link.rank is None and n != but]
        if silent:
            self._end(silent[0])
        return bool(silent)

    def feed(self, event: Event) -> None:
        """Give the machine an event and do what it says."""
        actions = self.machine.on(event, time.monotonic())
        if self.machine.is_settled and self._entrances:
            self._settle()  # before anybody hears of it: the place is free by then
        self._do(actions)

    def _settle(self) -> None:
        entrances, self._entrances = self._entrances, []
        for entrance in entrances:
            entrance.close(self.machine.fault)
        for number, link in list(self._links.items()):
            known = link.rank is not None or self.machine.rank_of(number) is not None
            if not known and link.closing_since is None:
                self._end(number)

    def died(self, rank: int, how: str) -> None:
        """Tell that a rank's process has ended."""
        self.feed(Died(rank=rank, how=how))

    def step(self, timeout_s: float | None = None) -> None:
        """Wait for something to happen, at most so long, and deal with it."""
        dispatch(self.selector, self._patience(timeout_s))
        self.feed(Tick())
        now = time.monotonic()
        for entrance in self._entrances:
            entrance.tick(now)
        self._drop_the_slow(now)

    def _patience(self, timeout_s: float | None) -> float | None:
        now = time.monotonic()
        due = [until for link in self._links.values() if (until := _until(link))]
        due += [d for e in self._entrances if (d := e.next_deadline) is not None]
        if (deadline := self.machine.next_deadline) is not None:
            due.append(deadline)
        if timeout_s is not None:
            due.append(now + timeout_s)
        return min(max(0.0, min(due) - now), LONGEST_WAIT_S) if due else None

    def _drop_the_slow(self, now: float) -> None:
        for number, link in list(self._links.items()):
            until = _until(link)
            if until is not None and until <= now:
                self._end(number)

    def _serve(self, number: int) -> None:
        try:
            self._read(number)
        except (EOFError, OSError):
            self._end(number)
        except Exception as e:  # a bug of ours must not end everybody's meeting
            self._end(number, f"could not be served ({type(e).__name__}: {e})")

    def _read(self, number: int) -> None:
        link = self._links.get(number)
        if link is None:
            return
        connection = link.connection
        assert isinstance(connection, Connection), "it is in the selector"
        with suppress(OSError):  # who has gone may have said so: that is read first
            connection.flush()
        frames = connection.receive()
        if link.closing_since is not None:
            if not connection.is_sending:
                self._end(number)
            return
        self._take(number, link, frames)

    def _take(
        self, number: int, link: _Link, frames: Sequence[Frame | Refused]
    ) -> None:
        for frame in frames:
            message = messages.read(frame)
            if isinstance(frame, Refused) or isinstance(message, Refused):
                assert isinstance(message, Refused)
                is_known = link.rank is not None
                if message.is_ours and (
                    is_known or not self.drop_oldest_stranger(number)
                ):
                    self._give_up(message.why)
                if link.rank is not None:  # its own descriptors may have run out
                    self._refuse(link, f"rank {link.rank}: {message.why}")
                self._end(number, f"sent what is no message ({message.why})")
                return
            held = frame.descriptors
            self.feed(Heard(link=number, message=message, descriptors=held))
            if link.rank is None:
                link.rank = self.machine.rank_of(number)
            if self.machine.rank_of(number) is not None:
                link.connection.trust()
        self._mind(number)

    def _give_up(self, why: str) -> None:
        """End the meeting, or what there is of it: this process cannot host it."""
        host = self.machine.host_rank
        who, blamed = (f"rank {host}", (host,)) if host >= 0 else ("the parent", ())
        text = f"{who} hosts the rendezvous and cannot go on: {why}"
        if not self.machine.is_settled:
            fault = Fault(error="RendezvousError", text=text, blamed=blamed)
            self.feed(GiveUp(fault=fault))
        else:
            self.refuse_all(text, blamed)

    def refuse_all(self, text: str, blamed: tuple[int, ...] = ()) -> None:
        """Tell everybody that there is no meeting any more."""
        for link in list(self._links.values()):
            self._refuse(link, text, blamed)

    def _refuse(self, link: _Link, text: str, blamed: tuple[int, ...] = ()) -> None:
        verdict = Verdict(group="", error="RendezvousError", text=text, blamed=blamed)
        with suppress(OSError, WireError):
            link.connection.post(messages.to_body(verdict))

    def _mind(self, number: int) -> None:
        """Watch for room to send while something waits to be sent."""
        link = self._links.get(number)
        if link is not None and isinstance(link.connection, Connection):
            wanted = selectors.EVENT_READ
            if link.connection.is_sending:
                wanted |= selectors.EVENT_WRITE
            key = self.selector.get_key(link.connection)
            if key.events != wanted:
                self.selector.modify(link.connection, wanted, key.data)

    def _do(self, actions: list[Action]) -> None:
        for action in actions:
            link = self._links.get(action.link)
            if link is None:
                continue
            match action:
                case Send(message=message, descriptors=held):
                    try:
                        link.connection.post(messages.to_body(message), held)
                    except (OSError, ValueError):
                        continue  # its end will be read in its turn
                    except WireError as e:
                        self._end(action.link, f"hangs ({e})")
                        continue
                    self._mind(action.link)
                case Drop() if link.connection.is_sending:
                    link.closing_since = time.monotonic()
                case Drop():
                    self._end(action.link)

    def _end(self, number: int, why: str | None = None) -> None:
        link = self._links.pop(number, None)
        if link is None:
            return
        self._close_link(link)
        known = self.machine.rank_of(number)
        rank = link.rank if known is None else known
        if rank is not None:
            how = why or self._explain(rank) or "died: its connection ended"
            self.feed(Closed(link=number, why=how))
            if known is None and link.rank is not None:
                self.died(link.rank, how)  # our child, before it said hello

    def close(self) -> None:
        """End all connections; whoever is still there sees it."""
        self._is_closed = True
        for entrance in self._entrances:
            entrance.close(self.machine.fault)
        self._entrances.clear()
        for link in self._links.values():
            self._close_link(link)
        self._links.clear()
        for relay in self._relays:
            relay.close()
        self.selector.close()

    def _close_link(self, link: _Link) -> None:
        if isinstance(link.connection, Connection):
            self.selector.unregister(link.connection)
        link.connection.close()

    def forget(self) -> None:
        """Close what a forked child has of it."""
        if not self._is_closed:
            for entrance in self._entrances:
                entrance.forget()
            for link in self._links.values():
                if isinstance(link.connection, Connection):
                    link.connection.close()
            for relay in self._relays:
                relay.close()
            self.selector.close()


def _until(link: _Link) -> float | None:
    """Return when a connection has been patient with us, or we with it, for long."""
    if link.closing_since is not None:
        return link.closing_since + CLOSING_S
    return link.since + STRANGER_S if link.rank is None else None


class Listener:
    """The entrance for processes of this user on this host."""

    def __init__(
        self,
        hub: Hub,
        sock: socket.socket,
        end: Callable[[Fault | None], None] | None = None,
    ) -> None:
        """Listen on a bound socket."""
        sock.setblocking(False)
        self._hub, self._socket, self._on_end = hub, sock, end
        self._paused_until: float | None = None
        hub.selector.register(sock, selectors.EVENT_READ, self._accept)

    @property
    def next_deadline(self) -> float | None:
        """When it listens again."""
        return self._paused_until

    def tick(self, now: float) -> None:
        """Listen again after a pause."""
        if self._paused_until is not None and now >= self._paused_until:
            self._paused_until = None
            selector = self._hub.selector
            selector.register(self._socket, selectors.EVENT_READ, self._accept)

    def _accept(self) -> None:
        try:
            sock, _ = self._socket.accept()
        except OSError as e:
            if e.errno in NO_ROOM and not self._hub.drop_oldest_stranger():
                self._hub.feed(NoRoom(why=f"{e.strerror}; {most_descriptors()}"))
                self._hub.selector.unregister(self._socket)
                self._paused_until = time.monotonic() + NO_ROOM_S
            return
        refusal = uid_refusal(peer_uid(sock), os.getuid())
        if refusal is not None or self._hub.num_strangers >= MAX_STRANGERS:
            sock.close()
        else:
            self._hub.adopt(sock)

    def close(self, fault: Fault | None) -> None:
        """Stop listening."""
        if self._paused_until is None:
            self._hub.selector.unregister(self._socket)
        self._socket.close()
        if self._on_end is not None:
            self._on_end(fault)

    def forget(self) -> None:
        """Close this process's descriptor."""
        self._socket.close()
