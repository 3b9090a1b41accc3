"""What a call returns that goes on: torch's Work, completed where the work is done."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist

from stretto.torch.faults import as_torch
from stretto.torch.meeting import seconds
from stretto.torch.untraced import untraced

_telling = threading.Lock()
"""Held while a call ends or a Future is asked for; never during a wait."""


class Runs(Protocol):
    """What a started call waits in: a queue, as far as the call knows it."""

    def finish(
        self, work: Started | None = None, timeout_s: float | None = None
    ) -> None:
        """Run all calls up to this one, in order."""

    def hurry(self, work: Started) -> None:
        """See to it that a call is run now, and don't wait."""


@untraced
class GroupWork(dist.Work):  # type: ignore[misc]
    """What all of them are: faults are raised by `wait`, and most have no source."""

    _tensors: Sequence[Any] = ()

    def synchronize(self) -> None:
        """Wait."""
        self.wait()

    def block_current_stream(self) -> None:
        """Wait: what is on a GPU, with the caller's stream."""
        self.wait()

    def is_success(self) -> bool:
        """Return whether it has ended."""
        return bool(self.is_completed())

    def exception(self) -> Any:
        """Return None."""

    def result(self) -> list[Any]:
        """Return the tensors, when the call has ended."""
        self.wait()
        return list(self._tensors)

    def source_rank(self) -> int:
        """Raise: a collective has no source."""
        raise RuntimeError("sourceRank() may only be called on work of recv")

    def _source_rank(self) -> int:
        return self.source_rank()


@untraced
class Started(GroupWork):
    """A call on the CPU that waits in a queue, or was run from it.

    Whoever waits for it runs it, and those before it; else the queue's thread does.
    """

    def __init__(
        self, queue: Runs, run: Callable[[], None], tensors: list[Any]
    ) -> None:
        dist.Work.__init__(self)
        self._queue = queue
        self._call: Callable[[], None] | None = run
        self._tensors = tensors
        self.is_over = False
        """Whether it has run, well or not."""
        self._error: BaseException | None = None
        self._ended: Any = None
        self._future: Any = None

    def run(self) -> bool:
        """Run the call; return whether somebody is to be told, by `tell`."""
        call, self._call = self._call, None
        assert call is not None, "a started call runs once"
        error: BaseException | None = None
        try:
            call()
        except BaseException as e:  # it belongs to whoever waits
            error = as_torch(e)
        told = self.end(error)
        if self._error is not None and not isinstance(self._error, Exception):
            raise self._error  # an interrupt belongs to the thread it came to, as well
        return told

    def end(self, error: BaseException | None) -> bool:
        """Be over, with an error or well; return whether somebody is to be told."""
        self._error = error
        with _telling:
            self.is_over = True
            return self._future is not None

    def tell(self) -> None:
        """Complete the Future; what hangs on it runs here."""
        self._ended.set_result(None)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Return when the call has ended; raise what it raised."""
        if not self.is_over:
            self._queue.finish(self, seconds(timeout) if timeout else None)
        if self._error is not None:
            raise self._error
        return True

    def get_future(self) -> Any:
        """Return a Future of the tensors. The queue's thread hurries from now on."""
        with _telling:
            if self._future is not None:
                return self._future
            self._ended = torch.futures.Future()
            self._future = self._ended.then(self._outcome)
            over = self.is_over
        if over:
            self.tell()
        else:
            self._queue.hurry(self)
        return self._future

    def _outcome(self, ended: Any) -> list[Any]:
        """Return the tensors, or raise: only so is an error one for C++, too.

        What `set_exception` sets is raised in Python alone. DDP's reducer would take
        it for a list of tensors, and read the first of none.
        """
        if self._error is not None:
            raise self._error
        return list(self._tensors)

    def is_completed(self) -> bool:
        """Return whether the call has ended, well or not."""
        return self.is_over

    def is_success(self) -> bool:
        """Return whether the call has ended well."""
        return self.is_over and self._error is None

    def exception(self) -> BaseException | None:
        """Return what the call raised."""
        return self._error


@untraced
class Done(GroupWork):
    """A call that had ended when its Work was asked for."""

    def __init__(self, tensors: Sequence[Any] = ()) -> None:
        dist.Work.__init__(self)
        self._tensors = list(tensors)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Return at once."""
        return True

    def get_future(self) -> Any:
        """Return a Future that is completed."""
        future = torch.futures.Future()
        future.set_result(list(self._tensors))
        return future

    def is_completed(self) -> bool:
        """Return that it has ended."""
        return True


@untraced
class Chained(GroupWork):
    """Another backend's work, and what is to be done here when it has ended."""

    def __init__(self, work: Any, after: Callable[[], None]) -> None:
        dist.Work.__init__(self)
        self._work = work
        self._after: Callable[[], None] | None = after

    def wait(self, *timeout: timedelta) -> bool:
        """Return when both are done."""
        self._work.wait(*timeout)
        after, self._after = self._after, None
        if after is not None:
            after()
        return True

    def is_completed(self) -> bool:
        """Return whether the other's work has ended."""
        return bool(self._work.is_completed())

    def is_success(self) -> bool:
        """Return whether it has ended well."""
        return bool(self._work.is_success())

    def exception(self) -> Any:
        """Return what it raised."""
        return self._work.exception()

    def get_future(self) -> Any:
        """Return a Future of what is done here afterwards."""
        self.wait()
        return Done().get_future()

    def source_rank(self) -> int:
        """Return who sent."""
        return int(self._work._source_rank())
