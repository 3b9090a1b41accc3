"""Send and receive: a channel for every ordered pair of ranks that talk.

A channel is a group of two, sender first, opened by the first transfer: the others need
not come. So sends to one rank keep their order, and different channels do not wait for
one another.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from stretto.errors import CommunicationError
from stretto.executors import Group
from stretto.program.ir import freeze
from stretto.runtime.calls.call import call
from stretto.runtime.calls.known import KnownCall
from stretto.runtime.calls.requests.arguments import as_whole
from stretto.runtime.calls.requests.layout import MISS, Seen
from stretto.runtime.calls.requests.request import Caller, Request
from stretto.runtime.calls.runner import CallRunner, looked_up
from stretto.runtime.calls.started import start
from stretto.runtime.calls.work import Work
from stretto.runtime.choice.select import Pin

_PAIR = freeze({"pairs": ((0, 1),)})


class PairRunner(CallRunner):
    """A group of two; what breaks it breaks the communicator that it belongs to."""

    def __init__(self, group: Group, parent: CallRunner) -> None:
        """Open no session yet: the first transfer opens that of its arrays."""
        super().__init__(group, executor="", profiles=parent._profiles, alone=True)
        self._parent = parent

    def _broke(self, error: BaseException) -> BaseException:
        if isinstance(error, CommunicationError):
            self._parent._broke(error)
        return super()._broke(error)


def send(
    self: Any,
    x: Any,
    to: int,
    *,
    algorithm: Pin = None,
    stream: Any = None,
    dtype: str | None = None,
) -> None:
    """Give `x` to a rank that calls `recv`; return when it has been taken."""
    key = ("send", id(x), 0, algorithm, stream, dtype)
    pair = self.rank, to
    known = _known(self, pair, key)
    if known is None or known(x, None) is MISS:
        _transfer(self, pair, key, x)


def recv(
    self: Any,
    out: Any,
    source: int,
    *,
    algorithm: Pin = None,
    stream: Any = None,
    dtype: str | None = None,
) -> Any:
    """Receive what `source` sends, in `out`: of the size and type that is sent."""
    key = ("recv", 0, id(out), algorithm, stream, dtype)
    pair = source, self.rank
    known = _known(self, pair, key)
    if known is None or (done := known(None, out)) is MISS:
        done = _transfer(self, pair, key, out)
    return done


def send_async(self: Any, x: Any, to: int, **options: Any) -> Work:
    """Start `send`."""
    channel = _channel(self, self._caller("send", None), self.rank, to)
    return start(channel, "send", self.send, x, to, **options)


def recv_async(self: Any, out: Any, source: int, **options: Any) -> Work:
    """Start `recv`."""
    channel = _channel(self, self._caller("recv", None), source, self.rank)
    return start(channel, "recv", self.recv, out, source, **options)


def _known(comm: Any, pair: tuple[Any, Any], key: tuple[Any, ...]) -> KnownCall | None:
    """Return the transfer that is known by its array, if there is one."""
    try:
        channel: PairRunner | None = comm._channels.get(pair)
    except TypeError:  # no rank at all: it is refused where ranks are read
        return None
    return looked_up(channel if channel and comm._fault is None else comm, key)


def _transfer(
    comm: Any, pair: tuple[Any, Any], key: tuple[Any, ...], array: Any
) -> Any:
    """Make a transfer that is not known by its array."""
    verb, _, _, pin, stream, dtype = key
    sends = verb == "send"
    who = replace(comm._caller(verb, dtype), pin=pin, stream=stream)
    if comm._channels.get((*map(as_whole, pair),)) is None:
        # what is wrong with the array is found before a channel is made
        who.take(array, "x" if sends else "out", written=not sends)
    comm._check_fault(verb)
    channel = _channel(comm, who, *pair)
    x, out = (array, None) if sends else (None, array)
    return call(channel, key, x, out, _examined, (who, array))


def _examined(
    channel: PairRunner, seen: Seen | None, who: Caller, array: Any
) -> Request:
    """Return the request of a transfer: a permutation of two ranks."""
    sends = who.verb == "send"
    name = "x" if sends else "out"
    taken = replace(who, seen=seen).take(array, name, written=not sends)
    pair = replace(who, rank=channel.rank, num_ranks=2)
    return pair.request(
        "permute",
        taken if sends else None,
        None if sends else taken,
        counts=(taken.count,) * 2,
        params=_PAIR,
        equal=False,
    )


def _channel(comm: Any, who: Caller, source: Any, target: Any) -> PairRunner:
    """Return the channel from one rank to another, opened at its first use."""
    pair = who.peer(source, "source"), who.peer(target, "to")
    if pair[0] == pair[1]:
        raise who.wrong(f"rank {pair[0]} with itself; want another rank")
    channel: PairRunner | None = comm._channels.get(pair)
    if channel is None:
        comm._check_fault(who.verb)
        try:
            group = comm._group.subgroup(f"{pair[0]}>{pair[1]}", pair)
            group.only_transfers = True  # executors may keep less staging for it
            group.opens_late = comm._group.opens_late
        except CommunicationError as e:
            raise comm._broke(e) from None
        channel = comm._channels[pair] = PairRunner(group, comm)
    return channel
