"""The thin shell around `Rendezvous`: sockets in, events to it, its actions out.

Who hosts the meeting runs one: rank 0 has its loop turned by a thread, `spawn`'s parent
turns it himself. It never waits for any single peer. Whatever comes on a connection
ends that connection at most. Entrances close when all have come.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from stretto.errors import WireError
from stretto.fabric.events import (
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
from stretto.fabric.faults import Fault
from stretto.fabric.forks import forget_in_children
from stretto.fabric.loop import Loop, Timer
from stretto.fabric.meeting import messages
from stretto.fabric.meeting.hosting.ends import Closing, Entrance, RankEnd
from stretto.fabric.meeting.hosting.rendezvous import Rendezvous
from stretto.fabric.meeting.last_words import LastWords
from stretto.fabric.messages import Verdict, Welcome
from stretto.fabric.notices import notify
from stretto.fabric.patience import CLOSING_S, MOST_STRANGERS, STRANGER_S
from stretto.fabric.porch import Entry
from stretto.fabric.process import most_descriptors, peer_uid, uid_refusal
from stretto.fabric.wire import Connection, Frame, Refused


@dataclass(slots=True, kw_only=True)
class _Link:
    connection: RankEnd
    """One of our own is watched by the loop."""
    rank: int | None
    """Known from the start when it is our own child."""
    is_closing: bool = False
    """Whether it only has to read the last that it is told."""


class Hub:
    """Serve one meeting, as long as its loop is turned: until `is_finished`."""

    def __init__(
        self,
        machine: Rendezvous,
        *,
        explain: Callable[[int], str | None] = lambda rank: None,
    ) -> None:
        self.machine = machine
        self.loop = Loop("stretto-hub")
        """Others may be served here, too."""
        self._tick: Timer | None = None
        self._last_words = LastWords.new()
        machine.settle = self._last_words.settle
        self._explain = explain
        self._entrances: list[Entrance] = []
        self._links: dict[int, _Link] = {}
        self._next_link = 0
        self._relays: list[Closing] = []
        self._is_closed = False
        forget_in_children(self)
        self._expect()

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

    def start(self) -> Loop:
        """Have a thread serve it until it is finished; return the loop of that."""
        self.loop.on_fault = self._fail
        self.loop.start(lambda: self.is_finished, self.close)
        return self.loop

    def _fail(self, error: Exception) -> None:
        """Even an error of ours must not leave them waiting."""
        text = f"the rendezvous failed: {type(error).__name__}: {error}"
        notify(f"pid {os.getpid()}: {text}")
        self.refuse_all(text)
        self.loop.stop()

    @property
    def is_finished(self) -> bool:
        """Whether nobody is left to serve."""
        return self.machine.is_finished and not self._links

    def adopt(self, sock: socket.socket, rank: int | None = None) -> None:
        """Take a connection, of our own child where a rank is named."""
        connection = Connection(sock)
        number = self._add(connection, rank)
        self.loop.watch(connection, partial(self._serve, number))

    def adopt_far(self, channel: RankEnd) -> int:
        """Take a rank that a relay speaks for; return its number here."""
        return self._add(channel, None)

    def _add(self, channel: RankEnd, rank: int | None) -> int:
        number, self._next_link = self._next_link, self._next_link + 1
        link = self._links[number] = _Link(connection=channel, rank=rank)
        if rank is None:

            def late() -> None:
                if link.rank is None:
                    self._end(number)

            # Who says nothing is not waited for: else any stranger keeps a place.
            self.loop.at(time.monotonic() + STRANGER_S, late)
        return number

    def hear_far(self, number: int, frame: Frame) -> None:
        """Take what a relay says for a rank."""
        link = self._links.get(number)
        if link is not None and not link.is_closing:
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
        self._expect()

    def _expect(self) -> None:
        """Have the machine told when its next time has come."""
        due = self.machine.next_deadline
        if due is not None and (self._tick is None or due != self._tick.when):
            if self._tick is not None:
                self._tick.cancel()
            self._tick = self.loop.at(due, self._is_due)

    def _is_due(self) -> None:
        self._tick = None
        self.feed(Tick())

    def _settle(self) -> None:
        entrances, self._entrances = self._entrances, []
        for entrance in entrances:
            entrance.close(self.machine.fault)
        for number, link in list(self._links.items()):
            known = link.rank is not None or self.machine.rank_of(number) is not None
            if not (known or link.is_closing):
                self._end(number)

    def died(self, rank: int, how: str) -> None:
        """Tell that a rank's process has ended."""
        self.feed(Died(rank=rank, how=how))

    def step(self, timeout_s: float | None = None) -> None:
        """Wait for something to happen, at most so long, and deal with it."""
        self.loop.step(timeout_s)

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
        assert isinstance(connection, Connection), "it is watched"
        with suppress(OSError):  # who has gone may have said so: that is read first
            connection.flush()
        frames = connection.receive()
        if link.is_closing:
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
                # Out of descriptors ourselves: a stranger goes first, and only where
                # there is none does the meeting end.
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
            self.loop.mind(link.connection)

    def _do(self, actions: list[Action]) -> None:
        for action in actions:
            link = self._links.get(action.link)
            if link is None:
                continue
            match action:
                case Send(message=message, descriptors=held):
                    if held and isinstance(message, Welcome):
                        held = self._last_words.with_file(held)
                    try:
                        link.connection.post(messages.to_body(message), held)
                    except (OSError, ValueError):
                        continue  # its end will be read in its turn
                    except WireError as e:
                        self._end(action.link, f"hangs ({e})")
                        continue
                    self._mind(action.link)
                # The last words go first; but who does not read them is not waited for.
                case Drop() if link.connection.is_sending:
                    link.is_closing = True
                    late = partial(self._end, action.link)
                    self.loop.at(time.monotonic() + CLOSING_S, late)
                case Drop():
                    self._end(action.link)

    def _end(self, number: int, why: str | None = None) -> None:
        link = self._links.pop(number, None)
        if link is None:  # what is fed below may end it, too
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
        self._last_words.close()
        self.loop.close()

    def _close_link(self, link: _Link) -> None:
        if isinstance(link.connection, Connection):
            self.loop.unwatch(link.connection)
        link.connection.close()

    def forget(self) -> None:
        """Close what a forked child has of it."""
        self.loop.forget()  # its descriptors are watched there, not here
        if not self._is_closed:
            for entrance in self._entrances:
                entrance.forget()
            for link in self._links.values():
                if isinstance(link.connection, Connection):
                    link.connection.close()
            for relay in self._relays:
                relay.close()
            self._last_words.close()


class Listener:
    """The entrance for processes of this user on this host."""

    def __init__(
        self,
        hub: Hub,
        sock: socket.socket,
        end: Callable[[Fault | None], None] | None = None,
    ) -> None:
        """Listen on a bound socket."""
        self._hub, self._on_end = hub, end
        self._entry = Entry(
            hub.loop, sock, self._take, make_room=hub.drop_oldest_stranger,
            no_room=self._no_room,
        )  # fmt: skip

    def _take(self, sock: socket.socket, source: str) -> None:
        if uid_refusal(peer_uid(sock), os.getuid()) is not None:
            sock.close()
            return
        if self._hub.num_strangers >= MOST_STRANGERS:
            self._hub.drop_oldest_stranger()
        self._hub.adopt(sock)

    def _no_room(self, error: OSError) -> None:
        self._hub.feed(NoRoom(why=f"{error.strerror}; {most_descriptors()}"))

    def close(self, fault: Fault | None) -> None:
        """Stop listening."""
        self._entry.close()
        if self._on_end is not None:
            self._on_end(fault)

    def forget(self) -> None:
        """Close this process's descriptor."""
        self._entry.forget()
