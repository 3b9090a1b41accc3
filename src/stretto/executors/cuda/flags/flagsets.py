"""Which flags a launch uses, and in what order those come that use the same ones.

Kernels of two streams run in any order, so signals of both must not meet in one set of
flags. The first streams that a session is used on have a set each. All others share
one, in the order of their calls: each launch waits for an event that the launch before
it recorded, at once and on its own stream, for that may be destroyed at any time after.
A graph cannot wait for what lies outside of it, so what those others capture goes to
the last set: launches of one capture follow one another there, and graphs of different
captures are to be replayed in turn.

A rank that calls what the others call, in their order, finds the same set as they do.
A channel of two ranks has one set for all: its ends need not use the same streams.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Protocol

from stretto.errors import CallError
from stretto.executors.cuda.device.driver import (
    api,
    ask,
    attempt,
    capture_number,
    capturing,
    stream_number,
    untimed_event,
)
from stretto.executors.cuda.flags.regions import FlagRegion

KEPT = 16
"""Captures under way at the same time whose order is known."""


class FlagTurn:
    """The time in which one call is launched on a set."""

    __slots__ = ("_flags", "_stream", "early")

    def __init__(self, flags: FlagSet, stream: int, early: bool) -> None:
        self._flags, self._stream = flags, stream
        self.early = early
        """Whether launches may be placed before what the stream has done ends."""

    def __enter__(self) -> bool:
        """Return whether launches may begin early."""
        return self.early

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Let the next turn follow, also when only a part has been launched."""
        self._flags.leave(self._stream)


class OwnFlags(Protocol):
    """A launch on a stream whose flags nobody else uses."""

    def share(self) -> None:
        """Ask for a turn from now on."""


class FlagSet:
    """A set that one stream has for itself: whose order is the stream's."""

    def __init__(self, nth: int, region: FlagRegion) -> None:
        self.nth = nth
        self.region = region
        self._free = FlagTurn(self, 0, True)

    def own(self, stream: int, launch: OwnFlags) -> bool:
        """Return whether a launch asks for no turn on a stream, from now on.

        It does again once it has been told to share.
        """
        return True

    def turn(self, stream: int) -> FlagTurn:
        """Return the time for a call on a stream, which has begun."""
        return self._free

    def leave(self, stream: int) -> None:
        """End the time of a call."""


class SharedSet(FlagSet):
    """A set of several streams, in order by events once there are two of them."""

    def __init__(self, nth: int, region: FlagRegion, *, lent: bool) -> None:
        """`lent`: the first stream owns it until a second one comes."""
        super().__init__(nth, region)
        self._lock = threading.RLock()
        self._lent = lent
        self._owners: weakref.WeakSet[OwnFlags] = weakref.WeakSet()
        """Whom to tell then."""
        self._only: int | None = None
        """The one stream that it has been used on; what is asked while it is one."""
        self._number: int | None = None
        self._event: Any = None
        self.captured = False
        """Whether that stream has captured a graph which uses it."""

    @property
    def streams(self) -> tuple[int, ...]:
        """Return the stream whose work no event follows."""
        only = self._event is None and self._only is not None
        return (self._only,) if only else ()  # type: ignore[return-value]

    def own(self, stream: int, launch: OwnFlags) -> bool:
        """Return whether a stream is the only one; a launch is told when it is not."""
        if not (self._lent and self.is_alone(stream)):
            return False
        # Under the lock: whoever begins to share tells all launches that are noted.
        with self._lock:
            self._begin(stream)
            self._owners.add(launch)
            return True

    def is_alone(self, stream: int) -> bool:
        """Return whether no other stream has used it."""
        return self._event is None and self._only in (None, stream)

    def turn(self, stream: int) -> FlagTurn:
        """Return the time for a call, which begins after the call before it."""
        # Held until `leave`: the launches of one call lie next to one another.
        self._lock.acquire()
        try:
            if self.is_alone(stream):
                self._begin(stream)
                return FlagTurn(self, stream, True)
            if self._event is None:
                self._event = self._begin_to_share(stream)
            # Now, on the caller's stream: the other stream may be destroyed at any
            # time.
            ask("cuStreamWaitEvent", api().CUstream(stream), self._event, 0)
            return FlagTurn(self, stream, False)
        except BaseException:
            self._lock.release()
            raise

    def leave(self, stream: int) -> None:
        """Record where the call ends, while its stream is certain to live."""
        try:
            if self._event is not None:
                ask("cuEventRecord", self._event, api().CUstream(stream))
        finally:
            self._lock.release()

    def settle(self) -> None:
        """Wait for what was launched here, asking no stream."""
        if self._event is not None:
            ask("cuEventSynchronize", self._event)

    def _begin(self, stream: int) -> None:
        """Remember the first stream."""
        if self._only is None:
            self._only, self._number = stream, stream_number(stream)

    def _begin_to_share(self, stream: int) -> Any:
        """Return an event behind what the one stream so far was given.

        A handle may be that of a new stream by now, and the work of the old one still
        under way: then all of the context is waited for.
        """
        only = self._only
        assert only is not None, "a set that nobody used is shared by nobody"
        state = capturing(only)
        if state:
            raise CallError(
                f"stream {stream:#x} shares its flags with stream {only:#x}, which "
                "captures a graph and has a call under way from before; make one call "
                "on each of the two before capturing, or set STRETTO_CUDA_STREAMS"
            )
        for launch in self._owners:
            launch.share()
        self._owners.clear()  # it happens once
        event = untimed_event()
        weakref.finalize(self, attempt, "cuEventDestroy", event)
        # The stream is gone, or its handle is another's: no event can follow it.
        if state is None or stream_number(only) != self._number:
            ask("cuCtxSynchronize")
        else:
            ask("cuEventRecord", event, api().CUstream(only))
        return event


class GraphSet(FlagSet):
    """A set for what is captured: in order by events inside of one capture."""

    def __init__(self, nth: int, region: FlagRegion) -> None:
        super().__init__(nth, region)
        self._lock = threading.RLock()
        self._captures: dict[int, tuple[int, Any]] = {}
        """The stream of a capture's last launch, and an event behind that."""
        self._now = 0

    def own(self, stream: int, launch: OwnFlags) -> bool:
        """Return that it is nobody's own."""
        return False

    def turn(self, stream: int) -> FlagTurn:
        """Return the time for a call, which follows those of the same graph."""
        self._lock.acquire()
        try:
            self._now = capture_number(stream)
            last, event = self._captures.get(self._now, (stream, None))
            if last != stream:
                ask("cuStreamWaitEvent", api().CUstream(stream), event, 0)
            return FlagTurn(self, stream, last == stream)
        except BaseException:
            self._lock.release()
            raise

    def leave(self, stream: int) -> None:
        """Note where the call ends in its graph."""
        try:
            _, event = self._captures.pop(self._now, (0, None))
            if event is None:
                # The oldest capture has surely ended; its event serves again.
                if len(self._captures) >= KEPT:
                    _, event = self._captures.pop(next(iter(self._captures)))
                else:
                    event = untimed_event()
                    weakref.finalize(self, attempt, "cuEventDestroy", event)
            ask("cuEventRecord", event, api().CUstream(stream))
            self._captures[self._now] = stream, event
        finally:
            self._lock.release()

    def streams(self) -> set[int]:
        """Return the streams that capture a graph; forget captures that have ended."""
        for number, (stream, _) in list(self._captures.items()):
            if not capturing(stream):
                del self._captures[number]
        return {stream for stream, _ in self._captures.values()}


class FlagSets:
    """The sets of a session, given to streams in the order of their first use."""

    def __init__(self, regions: Sequence[FlagRegion], *, channel: bool = False) -> None:
        """`channel`: two ranks that only transfer have one set for everything."""
        own = 0 if channel else max(len(regions) - 2, int(len(regions) == 2))
        self._free = [FlagSet(i, r) for i, r in enumerate(regions[:own])]
        self._free.reverse()
        self._own: dict[int, FlagSet] = {}
        self._channel = channel
        self._shared = SharedSet(own, regions[own], lent=channel)
        self._graphs: GraphSet | None = None
        if channel:
            self._graphs = GraphSet(own, regions[own])
        elif len(regions) > 2:
            self._graphs = GraphSet(own + 1, regions[own + 1])
        self._gone: set[int] = set()
        """Streams with a set of their own that somebody has destroyed."""

    def of(self, stream: int) -> FlagSet:
        """Return the set of what is launched on a stream now."""
        found = self._own.get(stream)
        if found is None:
            return self._give(stream) if self._free else self._common(stream)
        if self._gone:
            self._gone.discard(stream)  # a new one has its handle, and its flags
        return found

    def _give(self, stream: int) -> FlagSet:
        found = self._own[stream] = self._free.pop()
        return found

    def _common(self, stream: int) -> FlagSet:
        shared = self._shared
        if self._channel and shared.is_alone(stream):
            return shared
        if not capturing(stream):
            if shared.captured and not shared.is_alone(stream):
                raise _too_few(stream, "has the flags of a stream with a graph")
            return shared
        if self._graphs is not None:
            return self._graphs
        if not shared.is_alone(stream):
            raise _too_few(stream, "captures a graph, and shares its flags")
        shared.captured = True
        return shared

    def settle(self, current: int) -> None:
        """Wait for what runs: for all that does, unless a stream captures a graph.

        `current` is the caller's stream.
        """
        known = {*self._own, *self._shared.streams, current} - self._gone
        known |= set() if self._graphs is None else self._graphs.streams()
        found = {stream: capturing(stream) for stream in known}
        self._gone |= {stream for stream, state in found.items() if state is None}
        if not any(found.values()):
            ask("cuCtxSynchronize")
            return
        for stream, state in found.items():
            if state is False:
                ask("cuStreamSynchronize", api().CUstream(stream))
        self._shared.settle()


def _too_few(stream: int, why: str) -> CallError:
    return CallError(
        f"stream {stream:#x} {why}; a graph waits for nothing outside of it, so its "
        "flags are for one stream alone, and there are too few sets here: set "
        "STRETTO_CUDA_STREAMS=4 or more, or split() a communicator for the graph"
    )
