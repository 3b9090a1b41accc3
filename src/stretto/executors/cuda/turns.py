"""A channel's transfers follow one another, whatever streams they are given to.

Collectives on several streams have a set of flags each, matched by the order in which
streams are first used. The ends of a channel cannot be asked for that: one may start
its transfers, the other wait for each. So a channel has one set, and a transfer on
another stream than the one before waits for that. A started transfer has a stream
beside the caller's: who sends to one rank and then receives from another must not wait,
on its own stream, for somebody who does the same.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from stretto.executors.cuda.bound import stream_handle
from stretto.executors.cuda.driver import (
    Device,
    Side,
    api,
    ask,
    attempt,
    capturing,
    current_stream,
    untimed_event,
)

__all__ = ["Beside", "InTurn", "Turns"]


class Turns:
    """The order of one channel's launches over streams."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._last: int | None = None
        self._event: Any = None

    def take(self, stream: int) -> None:
        """Let a stream wait for what the stream before it was given.

        A graph cannot wait for what lies outside: whoever captures puts that in order.
        """
        last, self._last = self._last, stream
        if last is None or last == stream:
            return
        self._device.require_context()
        if capturing(stream) is not False or capturing(last) is not False:
            return
        if self._event is None:
            self._event = untimed_event()
            weakref.finalize(self, attempt, "cuEventDestroy", self._event)
        ask("cuEventRecord", self._event, api().CUstream(last))
        ask("cuStreamWaitEvent", api().CUstream(stream), self._event, 0)


class InTurn:
    """A launch whose stream waits for the channel's transfer before it."""

    def __init__(self, launch: Callable[..., None], turns: Turns, ordinal: int) -> None:
        self._launch, self._turns, self._ordinal = launch, turns, ordinal

    def __call__(self, x: Any, out: Any = None, stream: Any = None) -> None:
        """Enqueue the transfer, and return at once."""
        ordinal = self._ordinal
        handle = current_stream(ordinal) if stream is None else stream_handle(stream)
        self._turns.take(handle)
        self._launch(x, out, stream=handle)


class Beside:
    """A stream for started calls, each after what the caller's was given before."""

    def __init__(self, device: Device) -> None:
        self._device = device
        device.enter()
        self._side = Side()
        self.stream = int(self._side.stream)
        weakref.finalize(self, self._side.close)

    def after(self, stream: int) -> int:
        """Let what comes next wait for a stream; return the handle of ours."""
        self._device.require_context()
        ask("cuEventRecord", self._side.begin, api().CUstream(stream))
        ask("cuStreamWaitEvent", self._side.stream, self._side.begin, 0)
        return self.stream
