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
from stretto.fabric.hop.tcp.meet import Meet, Way
from stretto.fabric.hop.tcp.options import settle, silent, tune
from stretto.fabric.hop.tcp.words import BUFFER, ENTRIES, Context, End, Link

_ASK_S = 0.1
"""How often the system is asked whether peers' hosts are silent."""


class TcpHop(CompiledHop):
    """Sockets, one a lane, and the memory that the compiled engine knows them by."""

    is_armed, lingers = True, False

    def __init__(self, carrier: Carrier, window: Window) -> None:
        """Listen at the address that the other hosts reach."""
        tls.require()
        self._listeners: list[socket.socket] = []
        self._sockets: dict[Way, socket.socket] = {}
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
        window = self.window = replace(self.window, lanes=self.lanes)
        meet = Meet(window.rank, window.lanes, window.secret, self._listeners)
        try:
            self._sockets = meet.run(shares, peers, within_s, self.check)
        finally:
            self._stop_listening()
        for sock in self._sockets.values():
            tune(sock)
        self._lay_out()

    def _lay_out(self) -> None:
        """Write the words that the compiled engine knows."""
        from stretto.fabric.hop.tcp import engine

        window, many = self.window, len(self._sockets)
        self._context = np.zeros(Context.END, dtype=np.int64)
        self._links = np.zeros((many, Link.END), dtype=np.int64)
        self._ways = np.zeros((window.num_ranks, window.lanes), dtype=np.int64)
        self._polled = np.zeros(many + 1, dtype=np.int64)
        self._pieces = np.zeros((many, ENTRIES, 2), dtype=np.int64)
        self._buffers = np.zeros((many, 2, BUFFER), dtype=np.uint8)
        for nth, ((peer, lane), sock) in enumerate(self._sockets.items()):
            link = self._links[nth]
            link[Link.SOCKET], link[Link.PEER] = sock.fileno(), peer
            link[Link.PIECES] = self._pieces[nth].ctypes.data
            link[Link.OUT] = self._buffers[nth, 0].ctypes.data
            link[Link.IN] = self._buffers[nth, 1].ctypes.data
            link[Link.ROOM] = BUFFER
            self._ways[peer, lane] = link.ctypes.data
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
        }
        for word, value in given.items():
            self._context[word] = value
        self.use(engine, int(self._context.ctypes.data))

    def do_forget(self) -> None:
        """Close what a forked child has of it: the parent's connections go on."""
        for sock in (*self._sockets.values(), *self._listeners):
            sock.close()
        self._sockets.clear()

    def _stop_listening(self) -> None:
        for listener in self._listeners:
            listener.close()
        self._listeners = []

    @property
    def has_ended(self) -> bool:
        """Return whether a connection has ended, or a host is silent."""
        return bool(self._links[:, Link.ENDED].any() or self._silent_peers())

    def do_descriptors(self) -> Sequence[int]:
        """Return the numbers of the sockets."""
        return [sock.fileno() for sock in self._sockets.values() if sock.fileno() >= 0]

    def do_faults(self) -> Mapping[int, str]:
        """Return the peers whose connection has ended, or whose host is silent."""
        ended = {int(k[Link.PEER]): _how(k) for k in self._links if k[Link.ENDED]}
        return {**self._silent_peers(), **ended}

    def _silent_peers(self) -> Mapping[int, str]:
        now = time.monotonic()
        if now - self._asked_s > _ASK_S:
            self._asked_s = now
            self._silent = {  # one lane that answers says nothing of the others
                peer: how
                for (peer, _), sock in self._sockets.items()
                if (how := silent(sock))
            }
        return self._silent

    def do_close(self) -> None:
        """End all connections; what was sent still arrives. Nobody is in a call.

        The compiled engine leaves sockets alone from now on: their numbers may soon be
        somebody else's.
        """
        ended = self._links[:, Link.ENDED]
        ended[ended == End.OPEN] = End.CLOSED
        self._links[:, [Link.FIRST, Link.LAST]] = 0
        self._stop_listening()
        settle(list(self._sockets.values()))
        for sock in self._sockets.values():
            with suppress(OSError):
                sock.close()
        self._sockets.clear()


def _how(link: NDArray[np.int64]) -> str:
    match End(int(link[Link.ENDED])):
        case End.CLOSED:
            return "it ended the connection"
        case End.NONSENSE:
            return NONSENSE
        case _:
            return os.strerror(int(link[Link.ERROR]))
