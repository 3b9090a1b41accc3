"""Connect ranks by TCP. Random bytes at the port cost a connection and nothing else."""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from stretto.errors import RendezvousError
from stretto.fabric import tls
from stretto.fabric.handshake import Handshake
from stretto.fabric.loop import WRITE, Loop
from stretto.fabric.porch import Knock, Porch

_PURPOSE = "hop 3"
_STEP_S = 0.05
_NO_ANSWER = "no answer"
_MOST = 1 << 40
"""Numbers of connections, and all others, are below that."""


class LaneWay(NamedTuple):
    """A connection: to a peer, of a lane; which of the lane's it is; by which rail."""

    peer: int
    lane: int
    number: int
    rail: int


Made = dict[LaneWay, socket.socket]


def rails_of(share: Any) -> Sequence[tuple[str, int]]:
    """Return the addresses by which a rank is reached, each with its port."""
    rails = share.get("rails") or [(share["host"], share["port"])]
    return [(str(host), int(port)) for host, port in rails]


class Meet:
    """The connections of one rank, while they are made."""

    def __init__(
        self, rank: int, secret: bytes, listeners: Sequence[socket.socket],
        is_invited: Callable[[LaneWay], bool], pause_s: float = 0.05,
    ) -> None:  # fmt: skip
        """Listen at each rail, until `run` has ended; who is not invited may not come.

        What fails is tried again after a pause.
        """
        self.rank, self._pause_s = rank, pause_s
        self._secret, self._listeners, self._is_invited = secret, listeners, is_invited
        self._addresses = [one.getsockname()[:2] for one in listeners]
        self.made: Made = {}
        self._calls: dict[LaneWay, socket.socket | Knock] = {}
        """Those of ours that are under way."""
        self._why: dict[LaneWay, str] = {}
        """What became of the last try."""
        self._next: dict[LaneWay, float] = {}
        self._stranger = ""

    def run(
        self, shares: Sequence[Any], calls: Collection[LaneWay],
        is_enough: Callable[[], object], within_s: float, check: Callable[[], None],
    ) -> None:  # fmt: skip
        """Call whom we go to, and let in who comes, until that is enough or it is late.

        `check` is called now and then, and may raise why it is in vain.
        """
        until = time.monotonic() + within_s
        loop = self._loop = Loop()
        porch = Porch(
            loop, self._listeners, self._server, self._has_come,
            turned_away=self._turned_away, read_late=True,
        )  # fmt: skip
        try:
            while not is_enough():
                check()
                now = time.monotonic()
                if now >= until:
                    break
                for way in list(calls):
                    self._call(way, shares, now)
                loop.step(min(_STEP_S, until - now))
        except BaseException:
            for sock in self.made.values():
                sock.close()
            raise
        finally:
            porch.close()
            known = {way: why for way, why in self._why.items() if why != _NO_ANSWER}
            for call in list(self._calls.values()):
                call.close() if isinstance(call, socket.socket) else call.end("late")
            self._why |= known  # an earlier try says more than that this one is late
            loop.close()

    # We go to who has a larger rank.

    def _call(self, way: LaneWay, shares: Sequence[Any], now: float) -> None:
        """Begin a connection that is ours to make, again where that has failed."""
        if way in self.made or way in self._calls or self._next.get(way, 0.0) > now:
            return
        self._next[way] = now + self._pause_s
        where = self._theirs(way, shares)
        family = socket.AF_INET6 if ":" in where[0] else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.setblocking(False)
        error = self._bound(sock, way) or sock.connect_ex(where)
        if error not in (0, errno.EINPROGRESS):
            self._why[way] = os.strerror(error)
            sock.close()
            return
        self._calls[way] = sock
        self._why.setdefault(way, _NO_ANSWER)
        self._loop.watch(sock, partial(self._connected, way, sock), events=WRITE)

    def _theirs(self, way: LaneWay, shares: Sequence[Any]) -> tuple[str, int]:
        rails = rails_of(shares[way.peer])
        return rails[way.rail % len(rails)]

    def _mine(self, way: LaneWay) -> tuple[str, int]:
        host, port = self._addresses[way.rail % len(self._addresses)]
        return str(host), int(port)

    def _bound(self, sock: socket.socket, way: LaneWay) -> int:
        """Have a connection begin at the address of its rail; return what failed."""
        if len(self._listeners) > 1:
            try:
                sock.bind((self._mine(way)[0], 0))
            except OSError as e:
                return e.errno or errno.EADDRNOTAVAIL
        return 0

    def _connected(self, way: LaneWay, sock: socket.socket) -> None:
        self._loop.unwatch(sock)
        del self._calls[way]
        says = {"rank": self.rank, **way._asdict()}

        def judge(theirs: Mapping[str, Any]) -> str:
            same = theirs["rank"] == way.peer
            return "" if same else f"it is rank {theirs['rank']}"

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

    def _met(self, way: LaneWay, knock: Knock) -> None:
        self._calls.pop(way, None)
        self.made[way] = knock.sock

    def _refused(self, way: LaneWay, knock: Knock) -> None:
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
        rank, peer = theirs["rank"], theirs["peer"]
        if peer != self.rank:
            return f"it wants rank {peer}, and is at rank {self.rank}"
        way = LaneWay(rank, theirs["lane"], theirs["number"], theirs["rail"])
        if not all(type(word) is int and 0 <= word < _MOST for word in way):
            return "it comes with what is no lane"
        comes = 0 <= rank < self.rank and way not in self.made and self._is_invited(way)
        return "" if comes else f"rank {rank} comes with lane {way.lane}, uninvited"

    def _has_come(self, knock: Knock) -> None:
        theirs = knock.shake.theirs
        assert theirs is not None, "it is proved"
        way = LaneWay(theirs["rank"], theirs["lane"], theirs["number"], theirs["rail"])
        self.made[way] = knock.sock

    def _turned_away(self, knock: Knock) -> None:
        if not knock.hung_up:
            self._stranger = f"somebody came, but {knock.why}"

    def absent(self, way: LaneWay, shares: Sequence[Any], within_s: float) -> Exception:
        """Return who is missing where, and why as far as it is known."""
        peer, mine = way.peer, ":".join(map(str, self._mine(way)))
        theirs = ":".join(map(str, self._theirs(way, shares)))
        if peer > self.rank:
            what = f"rank {self.rank} cannot reach rank {peer} at {theirs} by tcp"
            why = self._why.get(way, "")
        else:
            what = f"rank {peer} at {theirs} did not come to rank {self.rank} at "
            what += f"{mine} by tcp"
            why = self._stranger
        return RendezvousError(
            f"{what} within {within_s:g} s{': ' * bool(why)}{why}. Let these hosts "
            "reach each other through the firewall (STRETTO_PORTS=LOW-HIGH says which "
            "ports), or name the network's interface in STRETTO_INTERFACE"
        )
