"""Started calls on GPUs: a stream of the group's own beside the caller's.

The call is enqueued at once, after what the caller's stream has been given so far; its
Work holds the tensors until the GPU has passed the call's end, so that their memory is
not given to anybody else before. `wait` makes the caller's stream wait, not the host.

What is over in a few microseconds is enqueued on the caller's stream itself: a second
stream and its events would cost the host more than the GPU could gain by them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from stretto.torch.faults import both_families

__all__ = ["Enqueued", "Lanes"]


SHORT = 256 << 10
"""Bytes of tensors of a call that is not worth a stream of its own."""


class Lanes:
    """The streams on which one group's started calls run: one for every device."""

    def __init__(self, hear: Callable[[], None]) -> None:
        """`hear` raises what launches so far have met."""
        self._streams: dict[Any, Any] = {}
        self._hear = hear
        self._running: deque[Enqueued] = deque()

    def start(
        self,
        run: Callable[[], None],
        tensors: list[Any],
        results: list[Any] | None = None,
    ) -> Enqueued:
        """Enqueue a call beside the caller's stream; return its Work."""
        cuda, device = torch.cuda, tensors[0].device
        stream = self._streams.get(device)
        if stream is None:
            stream = self._streams[device] = cuda.Stream(device, priority=-1)
        captured = cuda.is_current_stream_capturing()
        if not captured:
            self._forget_ended()
        here = cuda.current_stream(device)
        if not captured and sum(t.nbytes for t in tensors) <= SHORT:
            with both_families():
                run()
            return Enqueued(None, here, tensors, results, self._hear, captured=False)
        stream.wait_stream(here)
        with cuda.stream(stream), both_families():
            run()
            end = cuda.Event()
            end.record(stream)
        work = Enqueued(end, stream, tensors, results, self._hear, captured=captured)
        if not captured:  # a graph's memory is the graph's, until it goes
            self._running.append(work)
        return work

    def synchronize(self) -> None:
        """Hold the host until all that was started has ended."""
        for stream in self._streams.values():
            stream.synchronize()
        self._forget_ended()

    def _forget_ended(self) -> None:
        while self._running and self._running[0].end.query():
            self._running.popleft().release()


class Enqueued(dist.Work):  # type: ignore[misc]
    """A call on a GPU that has been enqueued."""

    def __init__(
        self,
        end: Any,
        stream: Any,
        tensors: list[Any],
        results: list[Any] | None,
        hear: Callable[[], None],
        *,
        captured: bool,
    ) -> None:
        """`end` is the event of its end; None: what its stream has been given."""
        dist.Work.__init__(self)
        self._end = end
        self._stream = stream
        self._held: list[Any] = tensors
        self._device = tensors[0].device
        self._results = tensors if results is None else results
        self._hear = hear
        self._captured = captured
        self._future: Any = None

    @property
    def end(self) -> Any:
        """The event of its end, or of a moment after that."""
        if self._end is None:
            self._end = torch.cuda.Event()
            self._end.record(self._stream)
        return self._end

    def release(self) -> None:
        """Hold inputs no longer: the GPU has passed the call."""
        self._held = []

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Let the caller's current stream wait for the call; raise what was met."""
        here = torch.cuda.current_stream(self._device)
        if self._end is not None or here != self._stream:
            here.wait_event(self.end)
        if not self._captured:
            with both_families():
                self._hear()
        return True

    synchronize = wait
    block_current_stream = wait

    def get_future(self) -> Any:
        """Return a Future whose users' streams wait for the call."""
        if self._future is None:
            future = torch.futures.Future(devices=[self._device])
            with torch.cuda.stream(self._stream):
                self._stream.wait_event(self.end)
                future.set_result(list(self._results))
            self._future = future
        return self._future

    def is_completed(self) -> bool:
        """Return whether the GPU has passed the call."""
        return not self._captured and bool(self.end.query())

    def is_success(self) -> bool:
        """Return whether it has ended, as faults are raised by `wait`."""
        return self.is_completed()

    def exception(self) -> None:
        """Return None: faults are raised by `wait`."""

    def result(self) -> list[Any]:
        """Return the tensors."""
        self.wait()
        return list(self._results)

    def source_rank(self) -> int:
        """Raise: a collective has no source."""
        raise RuntimeError("sourceRank() may only be called on work of recv")

    _source_rank = source_rank
