"""Rails that fail: when a lane leaves one, and how it gets a connection by it again.

The compiled engine takes another connection at once when one has ended, or when it is
told here that one stalls (paths.py). What was left is closed here, when both ends have
left it; then a thread tries to connect by that rail until it works again. A lane goes
back to the rail that is its own when there is a connection by it, and later ones by all
others: it always has somewhere to go on to.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.fabric.hop.tcp import options
from stretto.fabric.hop.tcp.meet import LaneWay, Meet, rails_of
from stretto.fabric.hop.tcp.paths import NO_HEARING, NO_SENDING, arrived
from stretto.fabric.hop.tcp.words import Link, RailWord
from stretto.fabric.workers import Workers

_log = logging.getLogger("stretto.hop")
_TRIED_S, _PAUSE_S, _MOST_PAUSE_S = 3.0, 0.25, 4.0
"""How long a connection is tried for, and the pause after it has failed at once: it
doubles while nobody can be reached."""
_REST_S = 0.12
"""How long after a connection was made it is known what is missing still."""
_STOP_S = 1.0
_FINISH_S, _NAP_S = 2.0, 0.001

Words = NDArray[np.int64]


class Lane:
    """One lane to a peer, of several rails: its words, and its connections."""

    def __init__(
        self, peer: int, lane: int, rails: int, link: Words, paths: Words
    ) -> None:
        """The words are the compiled engine's, and are first written here."""
        self.peer, self.lane, self.rails = peer, lane, rails
        self._link, self._paths = link, paths
        self.open: dict[int, tuple[LaneWay, socket.socket]] = {}
        self.highest = -1
        """Of all numbers that connections have had, or were to have."""
        self._before, self._why = -1, ""
        """The number that was last seen to be sent by, and why it is to be left."""
        paths[:, [RailWord.SOCKET, RailWord.NUMBER]] = -1
        link[[Link.SOCKET, Link.IN_SOCKET, Link.NUMBER, Link.IN_NUMBER]] = -1
        link[Link.ROOM_OF] = -1
        link[Link.PATHS], link[Link.SLOTS] = paths.ctypes.data, len(paths)

    def _path(self, number: int) -> Words:
        path: Words = self._paths[number % len(self._paths)]
        return path

    def take(self, way: LaneWay, sock: socket.socket) -> bool:
        """Have one connection more; False: there is no room until an old one goes."""
        path = self._path(way.number)
        if path[RailWord.SOCKET] >= 0 or way.number <= max(self.open, default=-1):
            return False
        path[:] = 0
        path[RailWord.NUMBER], path[RailWord.SOCKET] = way.number, sock.fileno()
        self.highest = max(self.highest, way.number)
        if not self.open:
            self._before = way.number
        self.open[way.number] = way, sock
        return True

    def _leave(self, for_number: int, why: str) -> None:
        """Have the engine send by a later connection, if there is one."""
        self._why = why
        self._link[Link.LEAVE] = max(int(self._link[Link.LEAVE]), for_number)

    def stir(self, stirs: select.epoll) -> None:
        """Have something turn readable when one of the connections does."""
        self._link[Link.STIRS] = stirs.fileno()
        for _, sock in self.open.values():
            stirs.register(sock, select.EPOLLIN)

    @property
    def has_ended(self) -> bool:
        """Return whether nothing goes by it any more."""
        return bool(self._link[Link.ENDED])

    @property
    def _home(self) -> int:
        """Return the lane's own rail."""
        return self.lane % self.rails

    @property
    def _stays(self) -> int:
        """Return the number that is to be sent by while all rails work."""
        number = int(self._link[Link.NUMBER])
        own = [n for n, (way, _) in self.open.items() if way.rail == self._home]
        return max([n for n in own if n > number], default=number)

    @property
    def missing(self) -> list[int]:
        """Return the rails by which a connection is to be made."""
        if self.has_ended:
            return []
        stays = self._stays
        there = {way.rail for n, (way, _) in self.open.items() if n >= stays}
        return [rail for rail in range(self.rails) if rail not in there]

    @property
    def silent(self) -> str:
        """Return how the host at the other end seems to be gone: by no rail it answers.

        By a rail that was left it need not.
        """
        number = int(self._link[Link.NUMBER])
        left = [sock for n, (_, sock) in self.open.items() if n >= number]
        said = [options.silent(sock) for sock in left]
        return f"{said[0]}, by none of {self.rails} rails" if said and all(said) else ""

    @property
    def sends(self) -> bool:
        """Return whether something has not arrived yet, and may arrive."""
        if self.has_ended or self.silent:
            return False
        return int(arrived(self._link.ctypes.data)) < int(self._link[Link.TOTAL])

    def tend(self) -> tuple[LaneWay, str] | None:
        """Leave a rail that stalls; return what is sent by no longer, and why."""
        number = int(self._link[Link.NUMBER])
        changed = None
        if self._before in self.open and number > self._before:
            way, error = self.open[self._before][0], self._error(self._before)
            changed = way, error or self._why or self._followed(number, way.rail)
            self._why = ""
        self._before = number
        if number in self.open and options.stalls(self.open[number][1]):
            self._leave(number + 1, "nothing arrives")
        elif number < self._stays and not self.missing:
            self._leave(self._stays, "")
        self._close_left(number)
        return changed

    def _error(self, number: int) -> str:
        error = int(self._path(number)[RailWord.ERROR])
        return os.strerror(error) if error else ""

    def _followed(self, number: int, left: int) -> str:
        """Return why the peer has left a rail, where it did not only go home."""
        is_home = number in self.open and self.open[number][0].rail == self._home
        return "" if is_home or left not in self.missing else "the peer has left it"

    def _close_left(self, number: int) -> None:
        """Close the connections that neither end uses any more.

        Never another: what the peer has sent by it may be here, and acknowledged.
        """
        came_by = int(self._link[Link.IN_NUMBER])
        for n in list(self.open):
            ended = int(self._path(n)[RailWord.ENDED])
            left = n < number and (n < came_by or ended & NO_HEARING)
            if left or (n > number and ended & NO_HEARING and ended & NO_SENDING):
                self._path(n)[RailWord.SOCKET] = -1
                self.open.pop(n)[1].close()


class Rails:
    """All lanes of a rank that have several rails, and the thread that mends them."""

    def __init__(
        self, rank: int, secret: bytes, listeners: Sequence[socket.socket],
        shares: Sequence[Any], lanes: Mapping[tuple[int, int], Lane],
    ) -> None:  # fmt: skip
        """The listeners stay the hop's; nothing is tried yet."""
        self.rank, self.lanes = rank, lanes
        self._secret, self._listeners, self._shares = secret, listeners, shares
        self._workers = Workers("stretto-rails")
        self._came: deque[tuple[LaneWay, socket.socket]] = deque()
        self._missing: list[tuple[int, int, int]] = []
        """Peer, lane and rail."""
        self._is_mending, self._closed = False, threading.Event()
        self._left: set[tuple[int, int]] = set()
        self.stirs = select.epoll()
        """Turns readable when one of the connections does."""
        for lane in lanes.values():
            lane.stir(self.stirs)
            for rail in lane.missing:
                self._leaves(LaneWay(lane.peer, lane.lane, -1, rail), "nobody answers")

    @property
    def silent(self) -> dict[int, str]:
        """Return which peers no rail reaches, and how that shows."""
        return {lane.peer: how for lane in self.lanes.values() if (how := lane.silent)}

    @property
    def described(self) -> str:
        """Return by which addresses of ours lanes go, and which are left just now."""
        left = {rail % len(self._listeners) for _, rail in self._left}
        said = [
            one.getsockname()[0] + " (left)" * (nth in left)
            for nth, one in enumerate(self._listeners)
        ]
        return f"rails: {', '.join(said)}"

    def tend(self) -> None:
        """Look after all lanes; nobody is in a call of the hop."""
        while self._came:
            way, sock = self._came.popleft()
            if not self.lanes[way.peer, way.lane].take(way, sock):
                sock.close()
                continue
            self.stirs.register(sock, select.EPOLLIN)
        for lane in self.lanes.values():
            changed = lane.tend()
            if changed is not None and changed[1]:
                self._leaves(*changed)
        self._missing = [
            (lane.peer, lane.lane, rail)
            for lane in self.lanes.values()
            for rail in lane.missing
        ]
        lack = {(peer, rail) for peer, _, rail in self._missing}
        ended = {lane.peer for lane in self.lanes.values() if lane.has_ended}
        for peer, rail in sorted(self._left - lack):
            if peer in ended:
                continue  # nothing is missing any more
            self._left.discard((peer, rail))
            self._say(LaneWay(peer, -1, -1, rail), "works again")
        if self._missing and not self._is_mending:
            self._is_mending = True
            self._workers.give(self._mend)

    def _leaves(self, way: LaneWay, why: str) -> None:
        if (way.peer, way.rail) not in self._left:
            self._left.add((way.peer, way.rail))
            self._say(way, f"is left: {why}")

    def _say(self, way: LaneWay, what: str) -> None:
        mine = self._listeners[way.rail % len(self._listeners)].getsockname()[0]
        theirs = rails_of(self._shares[way.peer])
        host = theirs[way.rail % len(theirs)][0]
        _log.warning(
            "rank %d: the rail from %s to rank %d at %s %s",
            self.rank, mine, way.peer, host, what,
        )  # fmt: skip

    # In the thread.

    def _mend(self) -> None:
        pause_s = _PAUSE_S
        try:
            while self._lacks and not self._closed.is_set():
                came = self._try(pause_s)
                pause_s = _PAUSE_S if came else min(2 * pause_s, _MOST_PAUSE_S)
        finally:
            self._is_mending = False

    @property
    def _lacks(self) -> list[tuple[int, int, int]]:
        """Return what is missing and has not come meanwhile."""
        came = {(way.peer, way.lane, way.rail) for way, _ in list(self._came)}
        return [one for one in self._missing if one not in came]

    def _try(self, pause_s: float) -> bool:
        """Connect where something is missing, or let in who comes, for a while.

        Return whether anything came of it.
        """
        listeners = [one.dup() for one in self._listeners]
        meet = Meet(self.rank, self._secret, listeners, self._is_invited, pause_s)
        calls: dict[tuple[int, int, int], LaneWay] = {}
        rests = [0.0]

        def is_enough() -> bool:
            now = time.monotonic()
            for way, sock in list(meet.made.items()):
                options.tune(sock)
                self._came.append((way, meet.made.pop(way)))
                calls.pop((way.peer, way.lane, way.rail), None)
                rests[0] = now + _REST_S  # more may be missing now
            lacks = self._lacks
            for peer, lane, rail in lacks if now > rests[0] else ():
                if peer > self.rank and (peer, lane, rail) not in calls:
                    self.lanes[peer, lane].highest += 1
                    number = self.lanes[peer, lane].highest
                    calls[peer, lane, rail] = LaneWay(peer, lane, number, rail)
            done = not lacks and now > rests[0]
            return done or self._closed.is_set()

        try:
            meet.run(self._shares, calls.values(), is_enough, _TRIED_S, lambda: None)
        finally:
            for sock in meet.made.values():
                sock.close()
        return rests[0] > 0

    def _is_invited(self, way: LaneWay) -> bool:
        lane = self.lanes.get((way.peer, way.lane))
        if lane is None or way.number <= lane.highest:
            return False
        lane.highest = way.number
        return 0 <= way.rail < lane.rails

    def finish(self, progress: Callable[[], object]) -> None:
        """Go on until all that was sent has arrived, by some rail, but not for long.

        The system alone would not send it by another one.
        """
        until = time.monotonic() + _FINISH_S
        while any(lane.sends for lane in self.lanes.values()):
            progress()
            self.tend()
            if time.monotonic() > until:
                return
            time.sleep(_NAP_S)

    def forget(self) -> None:
        """Close what a forked child has of it."""
        self.stirs.close()

    def close(self) -> None:
        """Try no more, and close what came meanwhile."""
        self._closed.set()
        self.stirs.close()
        self._workers.stop(_STOP_S)
        for _, sock in self._came:
            sock.close()
        self._came.clear()
