"""Started calls on GPUs: a stream of the group's own beside the caller's.

The call is enqueued at once, after what the caller's stream has been given so far; its
Work holds the tensors until the GPU has passed the call's end, so that their memory is
not given to anybody else before. `wait` makes the caller's stream wait, not the host.

What is over in a few microseconds is enqueued on the caller's stream itself: a second
stream and its events would cost the host more than the GPU could gain by them.

Nothing is made for a call but its Work: an event that the GPU has passed serves again,
first behind the caller's stream, then behind the call; streams are known by handle.

Sums that are known by their places are begun in C++ where that is there (`native`).
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from stretto.torch.faults import both_families
from stretto.torch.untraced import untraced
from stretto.torch.works import GroupWork

SHORT = 256 << 10
"""Bytes of tensors of a call that is not worth a stream of its own."""


def _current_handle(index: int) -> int:
    """Return the handle of a GPU's current stream, where PyTorch has no short way."""
    return int(torch.cuda.current_stream(index).cuda_stream)


current_handle: Callable[[int], int] = getattr(
    torch._C, "_cuda_getCurrentRawStream", _current_handle
)


@functools.lru_cache(maxsize=256)
def _stream_of(index: int, handle: int) -> Any:
    """Return PyTorch's stream of a handle."""
    if not handle:
        return torch.cuda.default_stream(index)
    return torch.cuda.ExternalStream(handle, device=index)


@functools.lru_cache(maxsize=64)
def _devices_of(index: int) -> list[Any]:
    return [torch.device("cuda", index)]


def _future_of(index: int) -> Any:
    """Return a Future of tensors on a GPU, as torch's own Works give."""
    return torch._C.Future(_devices_of(index))


def in_order(tensors: list[Any], results: list[Any] | None = None) -> EnqueuedCall:
    """Return the Work of a call that the caller's own stream has been given."""
    index = tensors[0].get_device()
    return EnqueuedCall(index, current_handle(index), tensors, results)


def is_aside(tensors: list[Any]) -> bool:
    """Return whether a call that blocks comes on a stream that goes before others.

    Who gives a stream that priority computes on another beside it, as FSDP2 does.
    """
    handle = current_handle(index := tensors[0].get_device())
    if not handle or sum(t.nbytes for t in tensors) <= SHORT:
        return False
    return int(_stream_of(index, handle).priority) < 0


class CallStreams:
    """The streams on which one group's started calls run: one for every device."""

    def __init__(self, hear: Callable[[], None]) -> None:
        """`hear` raises what launches so far have met."""
        self._streams: dict[int, Any] = {}
        self._hear = hear
        self._running: deque[EnqueuedCall] = deque()
        self._events: list[Any] = []
        """Those that the GPU has passed, for calls to come."""

    def start(
        self,
        run: Callable[[], None],
        tensors: list[Any],
        results: list[Any] | None = None,
    ) -> EnqueuedCall:
        """Enqueue a call beside the caller's stream; return its Work."""
        with both_families():
            if sum(t.nbytes for t in tensors) <= SHORT:
                run()
                return in_order(tensors, results)
            return self.beside(run, tensors, results)

    def beside(
        self,
        run: Callable[[], object],
        tensors: list[Any],
        results: list[Any] | None = None,
    ) -> EnqueuedCall:
        """Do so however short it is; what it raises comes as it is."""
        cuda, index = torch.cuda, tensors[0].get_device()
        side = self._streams.get(index)
        if side is None:
            side = self._streams[index] = cuda.Stream(index, priority=-1)
        captured = cuda.is_current_stream_capturing()
        end = cuda.Event() if captured else self._event()
        caller = _stream_of(index, current_handle(index))
        end.record(caller)
        end.wait(side)  # for what was recorded by now: it may be recorded again
        cuda.set_stream(side)
        try:
            run()
            end.record(side)
        finally:
            cuda.set_stream(caller)
        work = EnqueuedCall(index, side.cuda_stream, tensors, results, end)
        work.captured = captured
        if not captured:  # a graph's memory is the graph's, until it goes
            work.hear = self._hear
            self._running.append(work)
        return work

    def side_of(self, tensor: Any) -> Any:
        """Return the group's stream beside a caller's, where there is one."""
        return self._streams.get(tensor.get_device())

    def repeat(self, again: Callable[[Any], bool], tensor: Any) -> EnqueuedCall | None:
        """Enqueue a call that is known, and by itself on the group's stream.

        None: it must be examined, or a graph is being captured.
        """
        index = tensor.get_device()
        side, handle = self._streams.get(index), current_handle(index)
        if side is None:
            return None
        if handle and torch.cuda.is_current_stream_capturing():
            return None  # the legacy stream, which is 0, cannot be captured
        end = self._event()
        end.record(_stream_of(index, handle))
        end.wait(side)
        if not again(tensor):
            self._events.append(end)
            return None
        end.record(side)
        work = EnqueuedCall(index, side.cuda_stream, [tensor], None, end)
        work.hear = self._hear
        self._running.append(work)
        return work

    def _event(self) -> Any:
        """Return an event that nobody needs."""
        self._forget_ended()
        return self._events.pop() if self._events else torch.cuda.Event()

    def all_so_far(self, device: Any) -> EnqueuedCall:
        """Return the Work of all that was started on a device until now."""
        return self.beside(lambda: None, [torch.empty(0, device=device)])

    def synchronize(self) -> None:
        """Hold the host until all that was started has ended."""
        for stream in self._streams.values():
            stream.synchronize()
        self._forget_ended()

    def _forget_ended(self) -> None:
        running = self._running
        while running and running[0].end.query():
            self._events.append(running.popleft().release())


@untraced
class EnqueuedCall(GroupWork):
    """A call on a GPU that has been enqueued."""

    captured = False
    """Whether it is a node of a graph, which may run later, often or never."""
    passed = False
    """Whether the GPU is known to have passed it: then nobody waits."""
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
        self._index, self.handle = index, handle
        self._held = tensors
        self._tensors = tensors if results is None else results
        self._end = end
        self._future: Any = None

    @property
    def _stream(self) -> Any:
        return _stream_of(self._index, self.handle)

    @property
    def end(self) -> Any:
        """The event of its end, or of a moment after that."""
        if self._end is None:
            self.captured = torch.cuda.is_current_stream_capturing()
            self._end = torch.cuda.Event()
            self._end.record(self._stream)
        return self._end

    def release(self) -> Any:
        """Hold inputs no longer, as the GPU has passed the call; return its event."""
        self.passed = True
        self._held = []
        return self._end

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Let the caller's current stream wait for the call; raise what was met."""
        if not self.passed:
            handle = current_handle(self._index)
            if self._end is not None or handle != self.handle:
                self.end.wait(_stream_of(self._index, handle))
        if self.hear is not None:
            with both_families():
                self.hear()
        return True

    def get_future(self) -> Any:
        """Return a Future whose users' streams wait for the call.

        It records an event behind the call: on its stream, which is in order.
        """
        if self._future is None:
            future = self._future = _future_of(self._index)
            before = _stream_of(self._index, current_handle(self._index))
            torch.cuda.set_stream(self._stream)
            try:
                future.set_result(list(self._tensors))
            finally:
                torch.cuda.set_stream(before)
        return self._future

    def is_completed(self) -> bool:
        """Return whether the GPU has passed the call."""
        return self.passed or (not self.captured and bool(self.end.query()))
