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
from stretto.torch.untraced import untraced

__all__ = ["SHORT", "CallStreams", "Enqueued", "in_order"]


SHORT = 256 << 10
"""Bytes of tensors of a call that is not worth a stream of its own."""


def _current_handle(index: int) -> int:
    """Return the handle of a GPU's current stream, where PyTorch has no short way."""
    return int(torch.cuda.current_stream(index).cuda_stream)


current_handle: Callable[[int], int] = getattr(
    torch._C, "_cuda_getCurrentRawStream", _current_handle
)


def in_order(tensors: list[Any], results: list[Any] | None = None) -> Enqueued:
    """Return the Work of a call that the caller's own stream has been given."""
    index = tensors[0].get_device()
    return Enqueued(index, current_handle(index), tensors, results)


class CallStreams:
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
        if sum(t.nbytes for t in tensors) <= SHORT:
            with both_families():
                run()
            return in_order(tensors, results)
        cuda, device = torch.cuda, tensors[0].device
        stream = self._streams.get(device)
        if stream is None:
            stream = self._streams[device] = cuda.Stream(device, priority=-1)
        captured = cuda.is_current_stream_capturing()
        if not captured:
            self._forget_ended()
        stream.wait_stream(cuda.current_stream(device))
        with cuda.stream(stream), both_families():
            run()
            end = cuda.Event()
            end.record(stream)
        index, handle = tensors[0].get_device(), stream.cuda_stream
        work = Enqueued(index, handle, tensors, results, end)
        work.captured = captured
        if not captured:  # a graph's memory is the graph's, until it goes
            work.hear = self._hear
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


@untraced
class Enqueued(dist.Work):  # type: ignore[misc]
    """A call on a GPU that has been enqueued."""

    captured = False
    """Whether it is a node of a graph, which may run later, often or never."""
    hear: Callable[[], None] | None = None
    """Raises what launches so far have met; nothing: the next call raises it."""

    def __init__(
        self,
        index: int,
        handle: int,
        tensors: list[Any],
        results: list[Any] | None = None,
        end: Any = None,
    ) -> None:
        """A call on a stream of a GPU, each by its number.

        `end` is the event of its end; None: what the stream has been given until it is
        asked for.
        """
        dist.Work.__init__(self)
        self._index, self._handle = index, handle
        self._held = tensors
        self._results = tensors if results is None else results
        self._end = end
        self._future: Any = None

    @property
    def _stream(self) -> Any:
        if not self._handle:
            return torch.cuda.default_stream(self._index)
        return torch.cuda.ExternalStream(self._handle, device=self._index)

    @property
    def end(self) -> Any:
        """The event of its end, or of a moment after that."""
        if self._end is None:
            self.captured = torch.cuda.is_current_stream_capturing()
            self._end = torch.cuda.Event()
            self._end.record(self._stream)
        return self._end

    def release(self) -> None:
        """Hold inputs no longer: the GPU has passed the call."""
        self._held = []

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Let the caller's current stream wait for the call; raise what was met."""
        if self._end is not None or current_handle(self._index) != self._handle:
            torch.cuda.current_stream(self._index).wait_event(self.end)
        if self.hear is not None:
            with both_families():
                self.hear()
        return True

    synchronize = wait
    block_current_stream = wait

    def get_future(self) -> Any:
        """Return a Future whose users' streams wait for the call."""
        if self._future is None:
            future = torch.futures.Future(devices=[torch.device("cuda", self._index)])
            stream = self._stream
            with torch.cuda.stream(stream):
                stream.wait_event(self.end)
                future.set_result(list(self._results))
            self._future = future
        return self._future

    def is_completed(self) -> bool:
        """Return whether the GPU has passed the call."""
        end = self.end
        return not self.captured and bool(end.query())

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
