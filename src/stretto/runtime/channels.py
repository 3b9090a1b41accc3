"""Send and receive: a channel for every ordered pair of ranks that talk.

A channel is a group of two, sender first, opened by the first transfer: the others need
not come. So sends to one rank keep their order, and different channels do not wait for
one another.
"""

from __future__ import annotations

from typing import Any

from stretto.errors import CommunicationError
from stretto.ir import freeze
from stretto.runtime.arrays import Operand
from stretto.runtime.engine import Engine
from stretto.runtime.request import Caller
from stretto.runtime.select import Pin
from stretto.runtime.work import Work

__all__ = ["ChannelVerbs"]

_PAIR = freeze({"pairs": ((0, 1),)})


class ChannelVerbs(Engine):
    """Send and receive, between two ranks of the group."""

    _channels: dict[tuple[int, int], Engine]

    def send(
        self,
        x: Any,
        to: int,
        *,
        algorithm: Pin = None,
        stream: Any = None,
        dtype: str | None = None,
    ) -> None:
        """Give `x` to a rank that calls `recv`; return when it has been taken."""
        who = self._caller("send", dtype)
        self._transfer(who, self.rank, to, who.take(x, "x"), algorithm, stream)

    def recv(
        self,
        out: Any,
        source: int,
        *,
        algorithm: Pin = None,
        stream: Any = None,
        dtype: str | None = None,
    ) -> Any:
        """Receive what `source` sends, in `out`: of the size and type that is sent."""
        who = self._caller("recv", dtype)
        taken = who.take(out, "out", written=True)
        return self._transfer(who, source, self.rank, taken, algorithm, stream)

    def send_async(self, x: Any, to: int, **options: Any) -> Work:
        """Start `send`."""
        channel = self._channel(self._caller("send", None), self.rank, to)
        return channel._start("send", self.send, x, to, **options)

    def recv_async(self, out: Any, source: int, **options: Any) -> Work:
        """Start `recv`."""
        channel = self._channel(self._caller("recv", None), source, self.rank)
        return channel._start("recv", self.recv, out, source, **options)

    def _transfer(
        self,
        who: Caller,
        source: int,
        target: int,
        operand: Operand,
        pin: Pin,
        stream: Any,
    ) -> Any:
        self._check_fault(who.verb)
        channel = self._channel(who, source, target)
        sends = self.rank == source
        pair = Caller(rank=0 if sends else 1, num_ranks=2, verb=who.verb)
        request = pair.request(
            "permute",
            operand if sends else None,
            None if sends else operand,
            counts=(operand.count,) * 2,
            params=_PAIR,
            equal=False,
        )
        try:
            return channel._run(request, pin, stream)
        except CommunicationError as e:
            raise self._broke(e) from e.__cause__

    def _channel(self, who: Caller, source: Any, target: Any) -> Engine:
        pair = who.peer(source, "source"), who.peer(target, "to")
        if pair[0] == pair[1]:
            raise who.wrong(f"rank {pair[0]} with itself; want another rank")
        known = self.__dict__.setdefault("_channels", {})
        channel: Engine | None = known.get(pair)
        if channel is None:
            self._check_fault(who.verb)
            name = f"{pair[0]}>{pair[1]}"
            try:
                group = self._group.subgroup(name, pair)  # type: ignore[attr-defined]
            except CommunicationError as e:
                raise self._broke(e) from None
            channel = Engine(group, executor="", profiles=self._profiles)
            known[pair] = channel
        return channel

    def _close_channels(self) -> None:
        for channel in self.__dict__.get("_channels", {}).values():
            channel._end()
