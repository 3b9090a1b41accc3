"""Send and receive: a channel for every ordered pair of ranks that talk.

A channel is a group of two, sender first, opened by the first transfer: the others need
not come. So sends to one rank keep their order, and different channels do not wait for
one another.
"""

from __future__ import annotations

from typing import Any

from stretto.arrays.operands import Operand
from stretto.calls.known import Passed
from stretto.calls.requests.layout import MISS
from stretto.calls.requests.request import Caller
from stretto.calls.runner import CallRunner
from stretto.calls.work import Work
from stretto.choice.select import Pin
from stretto.errors import CommunicationError
from stretto.executors import Group
from stretto.ir import freeze

__all__ = ["Transfers"]

_PAIR = freeze({"pairs": ((0, 1),)})


class _Channel(CallRunner):
    """A group of two; what breaks it breaks the communicator that it belongs to."""

    def __init__(self, group: Group, parent: CallRunner) -> None:
        """Open no session yet: the first transfer opens that of its arrays."""
        super().__init__(group, executor="", profiles=parent._profiles, alone=True)
        self._parent = parent

    def _broke(self, error: BaseException) -> BaseException:
        if isinstance(error, CommunicationError):
            self._parent._broke(error)
        return super()._broke(error)


class Transfers:
    """The channels of one communicator."""

    def __init__(self, runner: CallRunner) -> None:
        """Start without channels."""
        self._runner = runner
        self._rank = runner.rank
        self._channels: dict[tuple[int, int], _Channel] = {}

    def send(
        self, x: Any, to: int, *, algorithm: Pin, stream: Any, dtype: str | None
    ) -> None:
        """Give `x` to a rank that calls `recv`."""
        key = ("send", id(x), 0, algorithm, stream, dtype)
        try:
            channel = self._channels.get((self._rank, to))
        except TypeError:  # no rank at all: it is refused where ranks are read
            channel = None
        if (
            channel is not None
            and self._runner._fault is None
            and channel._again(key, x, None) is not MISS
        ):
            return
        who = self._runner._caller("send", dtype)
        taken = who.take(x, "x")
        self._transfer(
            who, self._rank, to, taken, algorithm, stream, (key, x, None, None)
        )

    def recv(
        self, out: Any, source: int, *, algorithm: Pin, stream: Any, dtype: str | None
    ) -> Any:
        """Receive what `source` sends, in `out`."""
        key = ("recv", 0, id(out), algorithm, stream, dtype)
        try:
            channel = self._channels.get((source, self._rank))
        except TypeError:
            channel = None
        if (
            channel is not None
            and self._runner._fault is None
            and (done := channel._again(key, None, out)) is not MISS
        ):
            return done
        who = self._runner._caller("recv", dtype)
        taken, seen = who.take(out, "out", written=True), (key, None, out, None)
        return self._transfer(who, source, self._rank, taken, algorithm, stream, seen)

    def start(self, verb: str, call: Any, array: Any, peer: int, options: Any) -> Work:
        """Start a transfer, after those of its channel that were started before."""
        ends = (self._rank, peer) if verb == "send" else (peer, self._rank)
        channel = self._channel(self._runner._caller(verb, None), *ends)
        return channel._start(verb, call, array, peer, **options)

    def close(self) -> None:
        """End all channels."""
        for channel in self._channels.values():
            channel._end()

    def _transfer(
        self,
        who: Caller,
        source: int,
        target: int,
        operand: Operand,
        pin: Pin,
        stream: Any,
        seen: Passed,
    ) -> Any:
        self._runner._check_fault(who.verb)
        channel = self._channel(who, source, target)
        sends = self._rank == source
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
            self._runner._check_fault(who.verb)
            name = f"{pair[0]}>{pair[1]}"
            try:
                group = self._runner._group.subgroup(name, pair)
                group.only_transfers = True  # executors may keep less staging for it
                group.opens_late = self._runner._group.opens_late
            except CommunicationError as e:
                raise self._runner._broke(e) from None
            channel = self._channels[pair] = _Channel(group, self._runner)
        return channel
