"""Small things of DeepEP's interface: events, and settings that need nothing here.

Work is enqueued on the stream that is current, so what follows there follows it; an
event is for who waits on another stream. On CPUs calls have ended when they return.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from stretto.errors import CallError

__all__ = ["Config", "EventHandle", "EventOverlap", "topk_idx_t", "wait_for"]

topk_idx_t = torch.int64
"""The type of ids."""


@dataclass(frozen=True)
class Config:
    """Sizes of queues, which there are none of here: rows go where they belong."""

    num_sms: int = 20
    num_max_nvl_chunked_send_tokens: int = 6
    num_max_nvl_chunked_recv_tokens: int = 256
    num_max_rdma_chunked_send_tokens: int = 6
    num_max_rdma_chunked_recv_tokens: int = 256

    def get_nvl_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        """Return 0: memory is made by the first call of its kind."""
        return 0

    get_rdma_buffer_size_hint = get_nvl_buffer_size_hint


class EventHandle:
    """A point of the current stream; nothing where there are no GPUs."""

    def __init__(self) -> None:
        """Be what the current stream has got to."""
        self._event: Any = None
        if torch.cuda.is_initialized():
            self._event = torch.cuda.Event()
            self._event.record()

    def current_stream_wait(self) -> None:
        """Let the current stream go on after it."""
        if self._event is not None:
            torch.cuda.current_stream().wait_event(self._event)


class EventOverlap:
    """An event that is waited for, at the end of a `with` block, too."""

    def __init__(
        self, event: EventHandle | None = None, extra_tensors: Any = None
    ) -> None:
        """Hold an event, and tensors that are to live until it."""
        self.event, self.extra_tensors = event, extra_tensors
        self.hook_after_wait: Callable[[], None] | None = None
        self._release = False

    def current_stream_wait(self, release_handle: bool = False) -> None:
        """Let the current stream go on after the event."""
        if self.event is None:
            raise CallError("current_stream_wait: no event; want async_finish=True")
        self.event.current_stream_wait()
        hook, self.hook_after_wait = self.hook_after_wait, None
        if hook is not None:
            hook()
        if release_handle:
            self.event = None

    def register_hook_after_wait(self, hook_after_wait: Callable[[], None]) -> None:
        """Call something once, after the next wait."""
        if self.hook_after_wait is not None:
            raise CallError("register_hook_after_wait: there is a hook already")
        self.hook_after_wait = hook_after_wait

    def __call__(self, release_handle: bool = False) -> EventOverlap:
        """Say whether the `with` block lets the event go."""
        self._release = release_handle
        return self

    def __enter__(self) -> EventOverlap:
        """Begin what may run beside the call."""
        return self

    def __exit__(self, *_: object) -> None:
        """Wait for the event."""
        if self.event is not None:
            self.current_stream_wait(self._release)
        self._release = False


def wait_for(previous: Any) -> None:
    """Let the current stream go on after a caller's event, if there is one."""
    event = getattr(previous, "event", None)
    if event is not None:
        event.current_stream_wait()
