"""One rank's connections to its peers on other hosts, by TCP."""

from __future__ import annotations

import functools
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.hop import MOST_LANES, Calls, Window
from stretto.hop.tcp.interface import listen, rails_of
from stretto.hop.tcp.meet import Meet, Way
from stretto.hop.tcp.options import settle, silent, tune
from stretto.hop.tcp.plain import PlainEngine
from stretto.hop.tcp.words import BUFFER, ENTRIES, Context, End, Link
from stretto.meeting import tls
from stretto.meeting.forks import forget_in_children

__all__ = ["TcpHop", "missing"]
_ASK_S = 0.1
"""How often the system is asked whether peers' hosts are silent."""


@functools.cache
def missing() -> str:
    """Return why there is no compiled engine here, or nothing."""
    if os.uname().sysname != "Linux":
        return "it is for Linux"
    try:
        import numba
    except ImportError as e:
        return f"{e}: pip install 'stretto[cpu]'"
    return "NUMBA_DISABLE_JIT is set" if numba.config.DISABLE_JIT else ""


class TcpHop:
    """See `stretto.hop.Hop`."""

    def __init__(self, window: Window, *, compiled: bool | None = None) -> None:
        """Listen at the address that the other hosts reach."""
        tls.require()
        self._window, self.lanes = window, window.lanes
        self._compiled = not missing() if compiled is None else compiled
        towards = window.towards or "127.0.0.1"
        self._hosts = rails_of(window.rails, towards)
        self._listeners = [listen(host) for host in self._hosts]
        self._sockets: dict[Way, socket.socket] = {}
        self._engine: PlainEngine | _Compiled | None = None
        self._silent: dict[int, str] = {}
        self._asked_s = 0.0
        forget_in_children(self)

    def share(self) -> Mapping[str, Any]:
        """Return where peers connect."""
        assert self._listeners, "it is not connected yet"
        rails = [list(one.getsockname()[:2]) for one in self._listeners]
        host, port = rails[0]
        return {
            "carrier": "tcp", "host": host, "port": port, "rails": rails,
            "lanes": self.lanes,
        }  # fmt: skip

    def connect(
        self, shares: Sequence[Any], peers: Sequence[int], within_s: float,
        check: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        """Connect with peers; raise who is not there, or what `check` raises.

        There are as many lanes as the one wants who wants most.
        """
        assert self._listeners, "it is not connected yet"
        lanes = [self.lanes, *(int(shares[p].get("lanes", 1)) for p in peers)]
        self.lanes = min(max(lanes), MOST_LANES)
        window = self._window = replace(self._window, lanes=self.lanes)
        meet = Meet(window.rank, window.lanes, window.secret, self._listeners)
        try:
            self._sockets = meet.run(shares, peers, within_s, check)
        finally:
            self._stop_listening()
        for sock in self._sockets.values():
            tune(sock)
        kind = _Compiled if self._compiled else PlainEngine
        engine = self._engine = kind(window, self._sockets)
        self.put, self.signal, self.busy = engine.put, engine.signal, engine.busy
        self.progress, self.wait = engine.progress, engine.wait

    def forget(self) -> None:
        """Close what a forked child has of it: the parent's connections go on."""
        for sock in (*self._sockets.values(), *self._listeners):
            sock.close()
        self._sockets.clear()

    def _stop_listening(self) -> None:
        for listener in self._listeners:
            listener.close()
        self._listeners = []

    @property
    def calls(self) -> Calls | None:
        """Return the compiled calls, where they are."""
        return self._engine.calls if isinstance(self._engine, _Compiled) else None

    @property
    def has_fields(self) -> bool:
        """Return whether peers can put to fields: to the compiled engine's."""
        return self._compiled

    @property
    def has_ended(self) -> bool:
        """Return whether a connection has ended, or a host is silent."""
        if self._engine is None:
            return False
        return self._engine.has_ended or bool(self._silent_peers())

    @property
    def descriptors(self) -> Sequence[int]:
        """Return the numbers of the sockets."""
        return [sock.fileno() for sock in self._sockets.values() if sock.fileno() >= 0]

    def faults(self) -> Mapping[int, str]:
        """Return the peers whose connection has ended, or whose host is silent."""
        ended = self._engine.faults() if self._engine is not None else {}
        return {**self._silent_peers(), **ended}

    def _silent_peers(self) -> Mapping[int, str]:
        now = time.monotonic()
        if now - self._asked_s > _ASK_S:
            self._asked_s = now
            said = {peer: silent(sock) for (peer, _), sock in self._sockets.items()}
            self._silent = {peer: how for peer, how in said.items() if how}
        return self._silent

    is_armed = True

    def arm(self) -> bool:
        """Return that sockets turn readable by themselves."""
        return True

    def close(self) -> None:
        """End all connections; what was sent still arrives. Nobody is in a call."""
        if self._engine is not None:
            self._engine.end()
        self._stop_listening()
        settle(list(self._sockets.values()))
        for sock in self._sockets.values():
            with suppress(OSError):
                sock.close()
        self._sockets.clear()


class _Compiled:
    """The compiled engine's memory, and its calls from Python."""

    def __init__(
        self, window: Window, sockets: Mapping[tuple[int, int], socket.socket]
    ) -> None:
        from stretto.hop.tcp import engine

        self._engine = engine
        many = len(sockets)
        self._context = np.zeros(Context.END, dtype=np.int64)
        self._links = np.zeros((many, Link.END), dtype=np.int64)
        self._ways = np.zeros((window.num_ranks, window.lanes), dtype=np.int64)
        self._polled = np.zeros(many + 1, dtype=np.int64)
        self._pieces = np.zeros((many, ENTRIES, 2), dtype=np.int64)
        self._buffers = np.zeros((many, 2, BUFFER), dtype=np.uint8)
        self._arguments = np.zeros(8, dtype=np.int64)
        self._at = int(self._context.ctypes.data)
        for nth, ((peer, lane), sock) in enumerate(sockets.items()):
            link = self._links[nth]
            link[Link.SOCKET], link[Link.PEER] = sock.fileno(), peer
            link[Link.PIECES] = self._pieces[nth].ctypes.data
            link[Link.OUT] = self._buffers[nth, 0].ctypes.data
            link[Link.IN] = self._buffers[nth, 1].ctypes.data
            link[Link.ROOM] = BUFFER
            self._ways[peer, lane] = link.ctypes.data
        given = {
            Context.BASE: window.address,
            Context.PUT_FROM: window.puts[0],
            Context.PUT_TO: window.puts[1],
            Context.WORD_FROM: window.words[0],
            Context.WORD_TO: window.words[1],
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
        self.calls = Calls(self._at, *_entries())

    def _given(self, *words: int) -> int:
        self._arguments[: len(words)] = words
        return int(self._arguments.ctypes.data)

    def put(self, peer: int, lane: int, source: int, offset: int, nbytes: int) -> bool:
        """Begin a put."""
        given = self._given(peer, lane, source, offset, nbytes)
        return bool(self._engine.put(self._at, given))

    def signal(
        self, peer: int, lane: int, offset: int, value: int, side: int,
        words: Sequence[int],
    ) -> bool:  # fmt: skip
        """Raise a peer's word."""
        given = self._given(peer, lane, offset, value, side, *words)
        return bool(self._engine.signal(self._at, given))

    def progress(self) -> int:
        """Send and receive what can be."""
        return int(self._engine.progress(self._at, 0))

    def wait(self, microseconds: int) -> int:
        """Sleep until something comes, at most so long."""
        return int(self._engine.wait(self._at, microseconds))

    def busy(self) -> int:
        """Return whether something waits to be sent."""
        return int(self._engine.busy(self._at, 0))

    @property
    def has_ended(self) -> bool:
        """Return whether a connection has ended."""
        return bool(self._links[:, Link.ENDED].any())

    def end(self) -> None:
        """Leave the sockets alone: their numbers may soon be somebody else's."""
        ended = self._links[:, Link.ENDED]
        ended[ended == End.OPEN] = End.CLOSED
        self._links[:, [Link.FIRST, Link.LAST]] = 0

    def faults(self) -> Mapping[int, str]:
        """Return the peers whose connection has ended, and how."""
        return {int(k[Link.PEER]): _how(k) for k in self._links if k[Link.ENDED]}


@functools.cache
def _entries() -> tuple[int, ...]:
    """Return where the compiled calls begin.

    They are asked for once: that takes a lock of LLVM's, which a child that is forked
    meanwhile would find taken for ever.
    """
    from stretto.hop.tcp import engine
    from stretto.jit.atomics import entry

    some = engine.put, engine.signal, engine.progress, engine.wait, engine.busy
    return tuple(entry(function) for function in some)


def _how(link: NDArray[np.int64]) -> str:
    match End(int(link[Link.ENDED])):
        case End.CLOSED:
            return "it ended the connection"
        case End.NONSENSE:
            return "it sent what makes no sense"
        case _:
            return os.strerror(int(link[Link.ERROR]))
