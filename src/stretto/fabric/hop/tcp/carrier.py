"""One rank's connections to its peers on other hosts, by TCP."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.errors import RendezvousError
from stretto.fabric import tls
from stretto.fabric.hop import MOST_LANES, Carrier, CompiledHop, Window
from stretto.fabric.hop.connections import NONSENSE
from stretto.fabric.hop.interface import listen, rails_of
from stretto.fabric.hop.tcp.meet import LaneWay, Made, Meet
from stretto.fabric.hop.tcp.meet import rails_of as rails_said
from stretto.fabric.hop.tcp.mending import Lane, Rails
from stretto.fabric.hop.tcp.options import settle, silent, tune
from stretto.fabric.hop.tcp.words import BUFFER, ENTRIES, Context, End, Link, RailWord

_ASK_S = 0.1
"""How often the system is asked whether peers' hosts are silent."""
_REST_S = 1.0
"""How long it is waited for the other rails when a lane has one."""


class TcpHop(CompiledHop):
    """Sockets, one a lane, and the memory that the compiled engine knows them by."""

    is_armed, lingers = True, False

    def __init__(self, carrier: Carrier, window: Window) -> None:
        """Listen at the address that the other hosts reach."""
        tls.require()
        self._listeners: list[socket.socket] = []
        self._sockets: dict[tuple[int, int], socket.socket] = {}
        """Of lanes that have one connection, by peer and lane."""
        self._rails: Rails | None = None
        """All other lanes."""
        self._links = np.zeros((0, Link.END), dtype=np.int64)
        super().__init__(carrier, window)
        hosts = rails_of(window.rails, window.towards or "127.0.0.1")
        self.host = hosts[0]
        self._listeners = [listen(host) for host in hosts]
        self._silent: dict[int, str] = {}
        self._asked_s = 0.0

    def do_share(self) -> Mapping[str, Any]:
        """Return where peers connect."""
        rails = [list(one.getsockname()[:2]) for one in self._listeners]
        return {"port": rails[0][1], "rails": rails, "lanes": self.lanes}

    def do_connect(
        self, shares: Sequence[Any], peers: Sequence[int], within_s: float
    ) -> None:
        """Connect with peers: by as many lanes as the one wants who wants most."""
        if not self._listeners:
            raise RendezvousError(
                f"rank {self.window.rank}: nobody can come to its hop any more: it "
                "connects once; open another"
            )
        lanes = [self.lanes, *(int(shares[p].get("lanes", 1)) for p in peers)]
        self.lanes = min(max(lanes), MOST_LANES)
        self.window = replace(self.window, lanes=self.lanes)
        rails = {peer: self._rails_to(shares[peer]) for peer in peers}
        try:
            made = self._meet(shares, rails, within_s)
            for sock in made.values():
                tune(sock)
            self._lay_out(made, rails, shares)
        finally:
            if self._rails is None:
                self._stop_listening()

    def _rails_to(self, share: Any) -> int:
        """Return how many rails lead to a rank: whoever has fewer uses them again."""
        return max(len(self._listeners), len(rails_said(share)))

    def _meet(
        self, shares: Sequence[Any], rails: Mapping[int, int], within_s: float
    ) -> Made:
        """Return a connection for each lane of each peer, or more: by all its rails."""
        lanes = [(peer, lane) for peer in rails for lane in range(self.lanes)]
        ways = [
            LaneWay(peer, lane, number, (lane + number) % rails[peer])
            for peer, lane in lanes
            # What TLS has in its hands cannot be sent again by another connection.
            for number in range(1 if tls.is_asked() else rails[peer])
        ]
        listeners = [one.dup() for one in self._listeners]
        rank, secret, due = self.window.rank, self.window.secret, set(ways)
        meet = Meet(rank, secret, listeners, due.__contains__)
        late = [0.0]

        def enough() -> bool:
            if len(meet.made) == len(ways):
                return True
            if len({way[:2] for way in meet.made}) < len(lanes):
                return False
            late[0] = late[0] or time.monotonic() + _REST_S
            return time.monotonic() > late[0]  # a rail is down: it is tried again later

        meet.run(
            shares, [w for w in ways if w.peer > rank], enough, within_s, self.check
        )
        there = {way[:2] for way in meet.made}
        for missing in [way for way in ways if way[:2] not in there]:
            for sock in meet.made.values():
                sock.close()
            raise meet.absent(missing, shares, within_s)
        return meet.made

    def _lay_out(
        self, made: Made, rails: Mapping[int, int], shares: Sequence[Any]
    ) -> None:
        """Write the words that the compiled engine knows."""
        from stretto.fabric.hop.tcp import engine

        window, most = self.window, max(rails.values(), default=1)
        most = 1 if tls.is_asked() else most
        lanes = [(peer, lane) for peer in rails for lane in range(self.lanes)]
        many, slots = len(lanes), 4 * most if most > 1 else 0
        self._context = np.zeros(Context.END, dtype=np.int64)
        self._links = np.zeros((many, Link.END), dtype=np.int64)
        self._paths = np.zeros((many, slots, RailWord.END), dtype=np.int64)
        self._ways = np.zeros((window.num_ranks, window.lanes), dtype=np.int64)
        self._polled = np.zeros(many * (1 + slots) + 1, dtype=np.int64)
        self._pieces = np.zeros((many, ENTRIES, 2), dtype=np.int64)
        self._buffers = np.zeros((many, 2, BUFFER), dtype=np.uint8)
        self._scratch = np.zeros(BUFFER if slots else 0, dtype=np.uint8)
        several = {}
        for nth, (peer, lane) in enumerate(lanes):
            link = self._links[nth]
            link[Link.PEER] = peer
            link[Link.PIECES] = self._pieces[nth].ctypes.data
            link[Link.OUT] = self._buffers[nth, 0].ctypes.data
            link[Link.IN] = self._buffers[nth, 1].ctypes.data
            link[Link.ROOM] = BUFFER
            self._ways[peer, lane] = link.ctypes.data
            ways = sorted(way for way in made if way[:2] == (peer, lane))
            if most > 1 and rails[peer] > 1:
                paths = self._paths[nth]
                several[peer, lane] = Lane(peer, lane, rails[peer], link, paths)
                for way in ways:
                    several[peer, lane].take(way, made[way])
                continue
            sock = self._sockets[peer, lane] = made[ways[0]]
            link[Link.SOCKET] = link[Link.IN_SOCKET] = sock.fileno()
        if several:
            self.tended_s = _ASK_S
            about = window.rank, window.secret, self._listeners, shares
            self._rails = Rails(*about, several)
            self.by = self._rails.described
        inside = window.address, *window.puts, *window.words
        self._context[Context.WINDOW : Context.WINDOW + len(inside)] = inside
        given = {
            Context.LANES: window.lanes,
            Context.LINKS: self._links.ctypes.data,
            Context.NUM_LINKS: many,
            Context.WAYS: self._ways.ctypes.data,
            Context.POLLED: self._polled.ctypes.data,
            Context.WAKE: window.wake,
            Context.FIELDS: window.fields,
            Context.NUM_FIELDS: window.num_fields,
            Context.SCRATCH: self._scratch.ctypes.data if slots else 0,
        }
        for word, value in given.items():
            self._context[word] = value
        self.use(engine, int(self._context.ctypes.data))

    @property
    def _every(self) -> list[socket.socket]:
        """Return all sockets that are open."""
        lanes = self._rails.lanes.values() if self._rails else ()
        some = (sock for lane in lanes for _, sock in lane.open.values())
        return [*self._sockets.values(), *some]

    def do_forget(self) -> None:
        """Close what a forked child has of it: the parent's connections go on."""
        for sock in (*self._every, *self._listeners):
            sock.close()
        self._sockets.clear()
        if self._rails is not None:
            self._rails.forget()
            self._rails = None

    def _stop_listening(self) -> None:
        for listener in self._listeners:
            listener.close()
        self._listeners = []

    @property
    def has_ended(self) -> bool:
        """Return whether a connection has ended, or a host is silent."""
        return bool(self._links[:, Link.ENDED].any() or self._silent_peers())

    def do_descriptors(self) -> Sequence[int]:
        """Return the numbers of the sockets; one stands for those that change."""
        numbers = [sock.fileno() for sock in self._sockets.values()]
        several = [] if self._rails is None else [self._rails.stirs.fileno()]
        return [number for number in numbers + several if number >= 0]

    def do_faults(self) -> Mapping[int, str]:
        """Return the peers whose connection has ended, or whose host is silent."""
        ended = {int(k[Link.PEER]): _how(k) for k in self._links if k[Link.ENDED]}
        return {**self._silent_peers(), **ended}

    def _silent_peers(self) -> Mapping[int, str]:
        """Return whose hosts are silent; now and then, rails are looked after, too."""
        now = time.monotonic()
        if now - self._asked_s > _ASK_S:
            self._asked_s = now
            self._silent = {  # one lane that answers says nothing of the others
                peer: how
                for (peer, _), sock in self._sockets.items()
                if (how := silent(sock))
            }
            if self._rails is not None:
                self._rails.tend()
                self.by = self._rails.described
                self._silent |= self._rails.silent
                self._context[Context.TURN] = 0  # rails are looked at in the next one
        return self._silent

    def do_close(self) -> None:
        """End all connections; what was sent still arrives. Nobody is in a call.

        The compiled engine leaves sockets alone from now on: their numbers may soon be
        somebody else's.
        """
        if self._rails is not None:
            self._rails.finish(lambda: self._engine.progress(self._at, 0))
        ended = self._links[:, Link.ENDED]
        ended[ended == End.OPEN] = End.CLOSED
        self._links[:, [Link.FIRST, Link.LAST, Link.LARGE]] = 0
        every = self._every
        settle(every)
        for sock in every:
            with suppress(OSError):
                sock.close()
        self._sockets.clear()
        if self._rails is not None:
            self._rails.close()
            self._rails = None  # nobody looks after it any more
        self._stop_listening()


def _how(link: NDArray[np.int64]) -> str:
    match End(int(link[Link.ENDED])):
        case End.CLOSED:
            return "it ended the connection"
        case End.NONSENSE:
            return NONSENSE
        case _:
            return os.strerror(int(link[Link.ERROR]))
