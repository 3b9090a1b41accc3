"""Connect ranks by TCP. Random bytes at the port cost a connection and nothing else."""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from stretto.errors import RendezvousError
from stretto.fabric import tls
from stretto.fabric.handshake import Handshake
from stretto.fabric.loop import WRITE, Loop
from stretto.fabric.porch import Knock, Porch

_PURPOSE = "hop 2"
_PAUSE_S = 0.05
_NO_ANSWER = "no answer"

Way = tuple[int, int]
"""A peer, and a lane."""


def _rail(share: Any, lane: int) -> tuple[str, int]:
    """Return where a lane to a rank is connected to."""
    rails = share.get("rails") or [(share["host"], share["port"])]
    host, port = rails[lane % len(rails)]
    return str(host), int(port)


class Meet:
    """The connections of one rank, while they are made."""

    def __init__(
        self, rank: int, lanes: int, secret: bytes, listeners: Sequence[socket.socket]
    ) -> None:
        """Lanes go by the listeners' addresses in turn."""
        self.rank, self.lanes = rank, lanes
        self._secret, self._listeners = secret, listeners
        self._made: dict[Way, socket.socket] = {}
        self._calls: dict[Way, socket.socket | Knock] = {}
        """Those of ours that are under way."""
        self._why: dict[Way, str] = {}
        """What became of the last try."""
        self._next: dict[Way, float] = {}
        self._stranger = ""

    def run(
        self, shares: Sequence[Any], peers: Sequence[int], within_s: float,
        check: Callable[[], None],
    ) -> dict[Way, socket.socket]:  # fmt: skip
        """Return a connection for every lane of every peer; raise who is not there.

        `check` is called now and then, and may raise why it is in vain.
        """
        until = time.monotonic() + within_s
        ways = [(peer, lane) for peer in peers for lane in range(self.lanes)]
        calls = [way for way in ways if way[0] > self.rank]
        loop = self._loop = Loop()
        porch = Porch(
            loop, self._listeners, self._server, self._has_come,
            turned_away=self._turned_away, read_late=True,
        )  # fmt: skip
        try:
            while missing := [way for way in ways if way not in self._made]:
                check()
                now = time.monotonic()
                if now >= until:
                    raise self._absent(missing[0], shares, within_s)
                for way in calls:
                    self._call(way, shares, now)
                loop.step(min(_PAUSE_S, until - now))
        except BaseException:
            for sock in self._made.values():
                sock.close()
            raise
        finally:
            porch.close()
            for call in list(self._calls.values()):
                call.close() if isinstance(call, socket.socket) else call.end("late")
            loop.close()
        return self._made

    # We go to who has a larger rank.

    def _call(self, way: Way, shares: Sequence[Any], now: float) -> None:
        """Begin a connection that is ours to make, again where that has failed."""
        if way in self._made or way in self._calls or self._next.get(way, 0.0) > now:
            return
        self._next[way] = now + _PAUSE_S
        where = _rail(shares[way[0]], way[1])
        family = socket.AF_INET6 if ":" in where[0] else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.setblocking(False)
        error = self._bound(sock, way[1]) or sock.connect_ex(where)
        if error not in (0, errno.EINPROGRESS):
            self._why[way] = os.strerror(error)
            sock.close()
            return
        self._calls[way] = sock
        self._why.setdefault(way, _NO_ANSWER)
        self._loop.watch(sock, partial(self._connected, way, sock), events=WRITE)

    def _bound(self, sock: socket.socket, lane: int) -> int:
        """Have a connection begin at the address of its lane; return what failed."""
        if len(self._listeners) > 1:
            ours = self._listeners[lane % len(self._listeners)].getsockname()[0]
            try:
                sock.bind((ours, 0))
            except OSError as e:
                return e.errno or errno.EADDRNOTAVAIL
        return 0

    def _connected(self, way: Way, sock: socket.socket) -> None:
        self._loop.unwatch(sock)
        del self._calls[way]
        peer, lane = way
        says = {"rank": self.rank, "peer": peer, "lane": lane}

        def judge(theirs: Mapping[str, Any]) -> str:
            return "" if theirs["rank"] == peer else f"it is rank {theirs['rank']}"

        shake = Handshake(self._secret, _PURPOSE, says, comes=True, judge=judge)
        error = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        try:
            if error:
                raise OSError(error, os.strerror(error))
            self._calls[way] = Knock(
                self._loop, tls.secured(sock, server=False, read_late=True), shake,
                met=partial(self._met, way), refused=partial(self._refused, way),
            )  # fmt: skip
        except OSError as e:
            if not isinstance(e, BrokenPipeError | ConnectionResetError):
                self._why[way] = str(e.strerror)  # else an earlier try says more
            sock.close()

    def _met(self, way: Way, knock: Knock) -> None:
        self._calls.pop(way, None)
        self._made[way] = knock.sock

    def _refused(self, way: Way, knock: Knock) -> None:
        del self._calls[way]
        if not knock.hung_up or self._why.get(way, _NO_ANSWER) == _NO_ANSWER:
            self._why[way] = knock.why  # else an earlier try says more

    # Who has a smaller rank comes to us.

    def _server(self) -> Handshake:
        says = {"rank": self.rank}
        return Handshake(
            self._secret, _PURPOSE, says, comes=False, judge=self._uninvited
        )

    def _uninvited(self, theirs: Mapping[str, Any]) -> str:
        """Return why somebody of this job may not come with a lane, or nothing."""
        rank, peer, lane = theirs["rank"], theirs["peer"], theirs["lane"]
        if peer != self.rank:
            return f"it wants rank {peer}, and is at rank {self.rank}"
        known = (rank, lane) in self._made or not 0 <= rank < self.rank
        if known or not 0 <= lane < self.lanes:
            return f"rank {rank} comes with lane {lane}, uninvited"
        return ""

    def _has_come(self, knock: Knock) -> None:
        assert knock.shake.theirs is not None, "it is proved"
        way = knock.shake.theirs["rank"], knock.shake.theirs["lane"]
        self._made[way] = knock.sock

    def _turned_away(self, knock: Knock) -> None:
        if not knock.hung_up:
            self._stranger = f"somebody came, but {knock.why}"

    def _absent(
        self, way: Way, shares: Sequence[Any], within_s: float
    ) -> RendezvousError:
        peer, many = way[0], len(self._listeners)
        mine = self._listeners[way[1] % many].getsockname()
        theirs = ":".join(map(str, _rail(shares[peer], way[1])))
        if peer > self.rank:
            what = f"rank {self.rank} cannot reach rank {peer} at {theirs} by tcp"
            why = self._why.get(way, "")
        else:
            what = f"rank {peer} at {theirs} did not come to rank {self.rank} at "
            what += f"{mine[0]}:{mine[1]} by tcp"
            why = self._stranger
        return RendezvousError(
            f"{what} within {within_s:g} s{': ' * bool(why)}{why}. Let these hosts "
            "reach each other through the firewall (STRETTO_PORTS=LOW-HIGH says which "
            "ports), or name the network's interface in STRETTO_INTERFACE"
        )
