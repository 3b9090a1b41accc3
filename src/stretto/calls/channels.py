"""Send and receive: a channel for every ordered pair of ranks that talk.

A channel is a group of two, sender first, opened by the first transfer: the others need
not come. So sends to one rank keep their order, and different channels do not wait for
one another.
"""

from __future__ import annotations

from typing import Any

from stretto.arrays.arrays import Operand
from stretto.calls.engine import Engine
from stretto.calls.hot import MISS
from stretto.calls.request import Caller
from stretto.calls.work import Work
from stretto.choice.select import Pin
from stretto.errors import CommunicationError
from stretto.executors import Group
from stretto.ir import freeze

__all__ = ["ChannelVerbs"]

_PAIR = freeze({"pairs": ((0, 1),)})


class _Channel(Engine):
    """A group of two; what breaks it breaks the communicator that it belongs to."""

    def __init__(self, group: Group, parent: Engine) -> None:
        """Open no session yet: the first transfer opens that of its arrays."""
        super().__init__(group, executor="", profiles=parent._profiles)
        self._parent = parent

    def _broke(self, error: BaseException) -> BaseException:
        if isinstance(error, CommunicationError):
            self._parent._broke(error)
        return super()._broke(error)


class ChannelVerbs(Engine):
    """Send and receive, between two ranks of the group."""

    def __init__(self, *args: Any, **options: Any) -> None:
        """Start without channels."""
        self._channels: dict[tuple[int, int], _Channel] = {}
        super().__init__(*args, **options)

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
        key = ("send", id(x), 0, algorithm, stream, dtype)
        if self._repeat((self.rank, to), key, x, None) is not MISS:
            return
        who = self._caller("send", dtype)
        taken = who.take(x, "x")
        self._transfer(who, self.rank, to, taken, algorithm, stream, (key, x, None))

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
        key = ("recv", 0, id(out), algorithm, stream, dtype)
        if (done := self._repeat((source, self.rank), key, None, out)) is not MISS:
            return done
        who = self._caller("recv", dtype)
        taken, seen = who.take(out, "out", written=True), (key, None, out)
        return self._transfer(who, source, self.rank, taken, algorithm, stream, seen)

    def _repeat(
        self, pair: tuple[int, int], key: tuple[Any, ...], x: Any, out: Any
    ) -> Any:
        """Repeat a transfer that the channel knows, or return MISS."""
        try:
            channel = self._channels.get(pair)
        except TypeError:  # no rank at all: it is refused where ranks are read
            return MISS
        if channel is None or self._fault is not None:
            return MISS
        return channel._again(key, x, out)

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
        seen: tuple[tuple[Any, ...], Any, Any],
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
        return channel._run(request, pin, stream, seen)

    def _channel(self, who: Caller, source: Any, target: Any) -> _Channel:
        pair = who.peer(source, "source"), who.peer(target, "to")
        if pair[0] == pair[1]:
            raise who.wrong(f"rank {pair[0]} with itself; want another rank")
        channel = self._channels.get(pair)
        if channel is None:
            self._check_fault(who.verb)
            name = f"{pair[0]}>{pair[1]}"
            try:
                group = self._group.subgroup(name, pair)  # type: ignore[attr-defined]
                group.only_transfers = True  # executors may keep less staging for it
            except CommunicationError as e:
                raise self._broke(e) from None
            channel = self._channels[pair] = _Channel(group, self)
        return channel

    def _close_channels(self) -> None:
        for channel in self._channels.values():
            channel._end()
