"""How a call is started: on the CPU by a thread, on GPUs by being enqueued at once.

The stream is the one that is current in the caller, so a started call comes after what
made its arrays, and can be captured like any other.

Transfers have a stream beside it, a channel each: whoever sends to one rank before it
receives from another would wait, on one stream, for somebody who does the same. Those
whose peer may not have come yet go to the thread: their session is opened with it.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping
from typing import Any

from stretto.arrays.operands import GPU, on_gpu
from stretto.calls.work import Tail, Work, Worker
from stretto.executors import Session

__all__ = ["Starter"]


class Starter:
    """Starts the calls of one engine, in order."""

    def __init__(
        self,
        name: str,
        sessions: Mapping[str, Session],
        *,
        busy: Callable[[bool], None],
        hear: Callable[[], None],
        alone: bool = False,
    ) -> None:
        """`hear` raises what launches have met; `alone`: a session opens with a peer.

        The thread called `name` is begun by the first call that needs it.
        """
        self._name = name
        self._sessions = sessions
        self._busy = busy
        self._hear = hear
        self._alone = alone
        self._worker: Worker | None = None
        self._side_stream: Any = None

    def start(
        self,
        name: str,
        call: Callable[..., Any],
        args: tuple[Any, ...],
        options: Mapping[str, Any],
    ) -> Work:
        """Start a call, after those that were started before it."""
        run = functools.partial(call, *args, **options)
        arrays = (*args[:1], options.get("x"), options.get("out"))
        if not any(on_gpu(one) for one in arrays):
            return self._thread().start(name, self._asked(run))
        from stretto.executors import cuda

        stream = options.get("stream")
        if self._alone:
            if self._side_stream is None:
                self._side_stream = cuda.side_stream()
            stream = self._side_stream.after(cuda.stream_here(stream))
            run = functools.partial(run, stream=stream)
        idle = self._worker is None or self._worker.is_idle
        if idle and (GPU in self._sessions or not self._alone):
            return Work.enqueued(name, run, lambda: self._rest(stream, args, options))
        stream = cuda.stream_here(stream)
        run = functools.partial(run, stream=stream)
        rest = functools.partial(self._rest, stream, args, options)
        return self._thread().start(name, self._asked(run), rest)

    def _asked(self, run: Callable[[], Any]) -> Callable[[], Any]:
        """Return a call that is recorded as asked for now, whenever it begins."""
        now_ns = time.monotonic_ns()

        def asked() -> Any:
            for session in tuple(self._sessions.values()):
                session.asked(now_ns)
            return run()

        return asked

    def wait_idle(self) -> None:
        """Return when every started call has ended; those on the thread go on."""
        if self._worker is not None and not self._worker.is_me:
            self._worker.wait_idle()

    def stop(self) -> None:
        """End the thread after the calls that were started."""
        if self._worker is not None:
            self._worker.stop()

    def _thread(self) -> Worker:
        if self._worker is None:
            self._worker = Worker(self._name, busy=self._busy)
        return self._worker

    def _rest(self, stream: Any, *kept: Any) -> Tail:
        session: Any = self._sessions[GPU]
        return Tail(mark=session.mark(stream), hear=self._hear, kept=kept)
