"""The hub's side of a relay: one connection that speaks for all ranks of another host.

    relay: Via(link, body)   what a rank there says        hub: Via: what it is told
    relay: Cut(link, why)    its connection ended there    hub: Cut: end it there
    relay: Beat              it is there                   hub: Beat: so am I

Nothing but frames goes between hosts: descriptors stay with the relay. When the
connection ends, all of its ranks are gone, the one that hosts the relay first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from stretto.fabric.hosts import host_name
from stretto.fabric.meeting import messages
from stretto.fabric.meeting.hosting.hub import Hub
from stretto.fabric.meeting.messages import Beat, Cut, Via
from stretto.fabric.wire import Connection, Descriptor, Frame, Refused

MOST_RANKS = 4096


class Wing:
    """A relay's connection, as the hub sees it."""

    def __init__(self, hub: Hub, connection: Connection, host: str) -> None:
        """Serve it in the hub's loop."""
        self._hub, self._connection, self._host = hub, connection, host_name(host)
        self._numbers: dict[int, int] = {}
        """The hub's number of each of the relay's."""
        connection.trust()
        connection.keep_alive(beats=True)
        hub.loop.watch(connection, self._serve, fault=self._fail)
        hub.keep(self)
        self._is_open = True

    def _serve(self) -> None:
        try:
            with suppress(BlockingIOError):
                self._connection.flush()
            frames = self._connection.receive()
        except (EOFError, OSError) as e:
            self._end(str(e) or "it ended the connection")
            return
        self._hear(frames)
        self._mind()

    def _fail(self, error: Exception) -> None:
        self._end(f"{type(error).__name__}: {error}")

    def _hear(self, frames: Iterable[Frame | Refused]) -> None:
        for frame in frames:
            message = messages.read(frame)
            match message:
                case Via(link=link, body=body):
                    self._take(link, body)
                case Cut(link=link, why=why):
                    number = self._numbers.pop(link, None)
                    if number is not None:
                        self._hub.end_far(number, why)
                case Beat():
                    with suppress(OSError):  # its end is read, too
                        self.say(message)
                case _:
                    self._end("it sent what is no message")
                    return

    def _take(self, link: int, body: dict[str, Any]) -> None:
        if link not in self._numbers and len(self._numbers) < MOST_RANKS:
            channel = _Part(self, link)
            self._numbers[link] = self._hub.adopt_far(channel)
        if link in self._numbers:
            self._hub.hear_far(self._numbers[link], Frame(body=body))

    def say(self, message: Via | Cut | Beat) -> None:
        """Tell the relay something."""
        if self._is_open:
            self._connection.post(messages.to_body(message))
            self._mind()

    def _mind(self) -> None:
        """Watch for room to send while something waits to be sent."""
        if self._is_open:
            self._hub.loop.mind(self._connection)

    def forget(self, link: int) -> None:
        """Have the relay end a rank's connection."""
        if self._numbers.pop(link, None) is not None:
            with suppress(OSError):
                self.say(Cut(link=link, why=""))

    def _end(self, why: str) -> None:
        """Lose everybody there, the rank that hosts the relay first."""
        numbers = [self._numbers[link] for link in sorted(self._numbers)]
        self._numbers.clear()
        self.close()
        for number in numbers:
            self._hub.end_far(number, f"on {self._host} cannot be reached: {why}")

    def close(self) -> None:
        """End the connection."""
        if self._is_open:
            self._is_open = False
            self._hub.loop.unwatch(self._connection)
            self._connection.close()


class _Part:
    """One rank's part of a relay's connection."""

    is_sending = False

    def __init__(self, wing: Wing, link: int) -> None:
        self._wing, self._link = wing, link

    def post(
        self, body: Mapping[str, Any], descriptors: Iterable[Descriptor] = ()
    ) -> None:
        """Tell the rank something; descriptors stay on this host."""
        self._wing.say(Via(link=self._link, body=dict(body)))

    def trust(self) -> None:
        """Take it as it comes: the relay is trusted."""

    def close(self) -> None:
        """End the rank's connection to its relay."""
        self._wing.forget(self._link)
