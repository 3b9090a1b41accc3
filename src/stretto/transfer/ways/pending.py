"""What is under way: awaited, waited for, polled by a descriptor, or taken back."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Generator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from stretto.errors import TransferCancelled, TransferTimeout
from stretto.fabric.patience import check_timeout
from stretto.transfer.ports import LoopLike

if TYPE_CHECKING:
    import asyncio


__all__ = ["Closes", "Pending"]

T = TypeVar("T")


class Closes:
    """Something that is used for a while, in a `with`, and closed."""

    def close(self) -> None:
        """End it."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        """Use it for a while."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close it."""
        self.close()

    async def __aenter__(self) -> Self:
        """Use it for a while."""
        return self

    async def __aexit__(self, *error: object) -> None:
        """Close it."""
        self.close()


class Pending(Generic[T]):
    """Something that will have a result, or an error: the same for all that wait."""

    def __init__(self, loop: LoopLike, what: str) -> None:
        self._loop, self.what = loop, what
        self.is_ending = self._is_done = False
        """Whether it is decided how it ends; that it has ended is said a little later.
        """
        self._result: T | None = None
        self._error: BaseException | None = None
        self._news: list[Callable[[], None]] = []
        self._lock = threading.Lock()
        self._event: threading.Event | None = None
        self._fd = -1

    def __repr__(self) -> str:
        """Return what it is of, and whether it has ended, well or not."""
        failed = f"failed: {type(self._error).__name__}" if self._error else "done"
        state = failed if self._is_done else "under way"
        return f"<{type(self).__name__} {self.what}, {state}>"

    def done(self) -> bool:
        """Return whether it has ended, well or not."""
        if not self._is_done:
            self._loop.check()
        return self._is_done

    @property
    def error(self) -> BaseException | None:
        """Return the error that it has ended with, if it has."""
        return self._error

    def wait(self, timeout: float | None = None) -> T:
        """Return the result, or raise the error; TransferTimeout: neither in time.

        It goes on after a time-out, until its own deadline.
        """
        if timeout is not None:
            check_timeout(timeout, self.what)
        if not self._is_done:
            self._loop.check()
            until = None if timeout is None else time.monotonic() + timeout
            self._help(until)
            if not self._is_done and not self._loop.wait_for(self, until):
                raise TransferTimeout(f"{self.what}: not within {timeout:g} s")
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]

    def cancel(self) -> bool:
        """Take it back; return whether it had not ended yet."""
        if not self._is_done:
            self._loop.check()
        return self.fail(TransferCancelled(f"{self.what}: cancelled"))

    def fileno(self) -> int:
        """Return a descriptor that turns readable when it ends; it is ours."""
        if not self._is_done:
            self._loop.check()
        with self._lock:
            if self._fd < 0:
                flags = os.EFD_CLOEXEC | os.EFD_NONBLOCK
                self._fd = os.eventfd(int(self._is_done), flags)
        return self._fd

    def then(self, call: Callable[[], None]) -> None:
        """Call something when it ends, from whatever thread; at once if it has."""
        with self._lock:
            if not self._is_done:
                self._news.append(call)
                return
        call()

    def finish(self, result: T) -> bool:
        """Give it a result, unless it has ended."""
        return self._end(result, None)

    def fail(self, error: BaseException) -> bool:
        """Give it an error, unless it has ended."""
        return self._end(None, error)

    def _end(self, result: T | None, error: BaseException | None) -> bool:
        with self._lock:
            if self.is_ending:
                return False
            self.is_ending = True
        try:
            if error is not None:
                self._calm()
        finally:
            self._tell(result, error)
        return True

    def _calm(self) -> None:
        """Return when nothing is done for what has failed, before anybody hears it."""

    def _tell(self, result: T | None, error: BaseException | None) -> None:
        """Tell everybody that it has ended."""
        with self._lock:
            self._result, self._error = result, error
            self._is_done = True
            news, self._news = self._news, []
            if self._fd >= 0:
                os.eventfd_write(self._fd, 1)
            if self._event is not None:
                self._event.set()
        for call in news:
            call()

    def _help(self, until: float | None) -> None:
        """Do what can be done of it in the thread that waits."""

    def event(self) -> threading.Event:
        """Return what is set when it ends."""
        if not self._is_done:
            self._loop.check()
        with self._lock:
            if self._event is None:
                self._event = threading.Event()
                if self._is_done:
                    self._event.set()
            return self._event

    def __await__(self) -> Generator[Any, None, T]:
        """Wait in an event loop; being cancelled there cancels it."""
        if not self._is_done:
            self._loop.check()
            import asyncio  # late: who does not await does not pay for it

            loop = asyncio.get_running_loop()
            future: asyncio.Future[None] = loop.create_future()

            def tell() -> None:
                with suppress(RuntimeError):  # it is closed: nobody waits there
                    loop.call_soon_threadsafe(_set, future)

            self.then(tell)
            try:
                yield from future
            except asyncio.CancelledError:
                self.cancel()
                raise
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]

    def __del__(self) -> None:
        """Give the descriptor back."""
        if getattr(self, "_fd", -1) >= 0:
            os.close(self._fd)


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
