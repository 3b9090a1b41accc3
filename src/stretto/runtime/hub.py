"""The thin shell around `Rendezvous`: sockets in, events to it, its actions out.

Whoever hosts the meeting runs one: rank 0 in a thread, or `spawn`'s parent in its
own loop. It sleeps in one selector call and never waits for any single peer.
"""

from __future__ import annotations

import os
import selectors
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from stretto.errors import WireError
from stretto.runtime import messages
from stretto.runtime.process import peer_uid, uid_refusal
from stretto.runtime.rendezvous import (
    Action,
    Closed,
    Died,
    Drop,
    Event,
    Heard,
    Rendezvous,
    Send,
    Tick,
)
from stretto.runtime.wire import Connection

STRANGER_S = 5.0
"""How long a connection may stay without saying who it is."""
MAX_STRANGERS = 256


@dataclass(slots=True, kw_only=True)
class _Link:
    connection: Connection
    rank: int | None
    """Known from the start when it is our own child."""
    since: float
    closing: bool = False


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
        self._links: dict[int, _Link] = {}
        self._next_link = 0

    def serve(self, listener: socket.socket) -> None:
        """Take whoever comes to this socket."""
        listener.setblocking(False)

        def accept() -> None:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            strangers = sum(link.rank is None for link in self._links.values())
            refusal = uid_refusal(peer_uid(sock), os.getuid())
            if refusal is not None or strangers >= MAX_STRANGERS:
                sock.close()
            else:
                self.adopt(sock)

        self.selector.register(listener, selectors.EVENT_READ, accept)

    def adopt(self, sock: socket.socket, rank: int | None = None) -> None:
        """Take a connection, of our own child where a rank is named."""
        number = self._next_link
        self._next_link += 1
        link = _Link(connection=Connection(sock), rank=rank, since=time.monotonic())
        self._links[number] = link
        self.selector.register(
            link.connection, selectors.EVENT_READ, lambda: self._serve(number)
        )

    def feed(self, event: Event) -> None:
        """Give the machine an event and do what it says."""
        self._do(self.machine.on(event, time.monotonic()))

    def died(self, rank: int, how: str) -> None:
        """Tell that a rank's process has ended."""
        self.feed(Died(rank=rank, how=how))

    def step(self, timeout_s: float | None = None) -> None:
        """Wait for something to happen, at most so long, and deal with it."""
        for key, _ in self.selector.select(self._patience(timeout_s)):
            key.data()
        self.feed(Tick())
        self._drop_strangers()

    def _patience(self, timeout_s: float | None) -> float | None:
        now = time.monotonic()
        due = [link.since + STRANGER_S for link in self._strangers()]
        if (deadline := self.machine.next_deadline) is not None:
            due.append(deadline)
        if timeout_s is not None:
            due.append(now + timeout_s)
        return max(0.0, min(due) - now) if due else None

    def _strangers(self) -> list[_Link]:
        return [k for k in self._links.values() if k.rank is None]

    def _drop_strangers(self) -> None:
        oldest = time.monotonic() - STRANGER_S
        for number, link in list(self._links.items()):
            if link.rank is None and link.since <= oldest:
                self._end(number)

    def _serve(self, number: int) -> None:
        link = self._links.get(number)
        if link is None:
            return
        try:
            link.connection.flush()
            frames = link.connection.receive()
        except (EOFError, OSError):
            self._end(number)
            return
        except WireError as e:
            self._end(number, f"sent what is no message ({e})")
            return
        if link.closing:
            if not link.connection.is_sending:
                self._end(number)
            return
        for frame in frames:
            try:
                message = messages.from_body(frame.body)
            except WireError as e:
                self._end(number, f"sent what is no message ({e})")
                return
            event = Heard(link=number, message=message, descriptors=frame.descriptors)
            self.feed(event)
            if link.rank is None:
                link.rank = self.machine.rank_of(number)
            if self.machine.rank_of(number) is not None:
                link.connection.trust()
        self._mind(number)

    def _mind(self, number: int) -> None:
        """Watch for room to send while something waits to be sent."""
        link = self._links.get(number)
        if link is not None:
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
                    except OSError:
                        continue  # its end will be read in its turn
                    except WireError as e:
                        self._end(action.link, f"hangs ({e})")
                        continue
                    self._mind(action.link)
                case Drop() if link.connection.is_sending:
                    link.closing = True
                case Drop():
                    self._end(action.link)

    def _end(self, number: int, why: str | None = None) -> None:
        link = self._links.pop(number, None)
        if link is None:
            return
        self.selector.unregister(link.connection)
        link.connection.close()
        known = self.machine.rank_of(number)
        rank = link.rank if known is None else known
        if rank is not None:
            how = why or self._explain(rank) or "died: its connection ended"
            self.feed(Closed(link=number, why=how))
            if known is None and link.rank is not None:
                self.died(link.rank, how)  # our child, before it said hello

    def close(self) -> None:
        """End all connections; whoever is still there sees it."""
        for link in self._links.values():
            self.selector.unregister(link.connection)
            link.connection.close()
        self._links.clear()
        self.selector.close()


class HubThread:
    """A hub that rank 0 hosts, in a daemon thread of its own."""

    def __init__(self, hub: Hub, path: Path) -> None:
        self.hub = hub
        self._path = path
        self._thread = threading.Thread(
            target=self._run, name="stretto-hub", daemon=True
        )
        self._thread.start()

    def _run(self) -> None:
        machine = self.hub.machine
        try:
            while not (machine.is_finished and machine.fault is None):
                self.hub.step()  # after a fault too: for the late comers
        finally:
            self.hub.close()  # even an error of ours must not leave them waiting
            self._path.unlink(missing_ok=True)

    def wait_finished(self, timeout_s: float) -> None:
        """Wait until everybody has left, at most so long."""
        if self.hub.machine.fault is None:  # else the socket stays, as a tombstone
            self._thread.join(timeout_s)
