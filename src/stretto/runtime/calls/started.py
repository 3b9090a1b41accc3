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
from collections.abc import Callable
from typing import Any

from stretto.arrays import GPU, on_gpu
from stretto.runtime.calls.runner import CallRunner
from stretto.runtime.calls.work import CallThread, Tail, Work


def start(
    calls: CallRunner, name: str, call: Callable[..., Any], *args: Any, **options: Any
) -> Work:
    """Start a call, after those that were started before it."""
    calls._check_fault(name)
    run = functools.partial(call, *args, **options)
    arrays = (*args[:1], options.get("x"), options.get("out"))
    if not any(on_gpu(one) for one in arrays):
        return _thread(calls).start(name, _asked(calls, run))
    from stretto.executors import cuda

    stream = options.get("stream")
    if calls._alone:
        if calls._side_stream is None:
            calls._side_stream = cuda.side_stream()
        stream = calls._side_stream.after(cuda.stream_here(stream))
        run = functools.partial(run, stream=stream)
    idle = calls._worker is None or calls._worker.is_idle
    if idle and (GPU in calls._sessions or not calls._alone):
        return Work.enqueued(name, run, lambda: _rest(calls, stream, args, options))
    stream = cuda.stream_here(stream)
    run = functools.partial(run, stream=stream)
    rest = functools.partial(_rest, calls, stream, args, options)
    return _thread(calls).start(name, _asked(calls, run), rest)


def _asked(calls: CallRunner, run: Callable[[], Any]) -> Callable[[], Any]:
    """Return a call that is recorded as asked for now, whenever it begins."""
    now_ns = time.monotonic_ns()

    def asked() -> Any:
        for session in tuple(calls._sessions.values()):
            session.asked(now_ns)
        return run()

    return asked


def _thread(calls: CallRunner) -> CallThread:
    """Return the thread of started calls, begun by the first that needs it."""
    if calls._worker is None:
        calls._worker = CallThread(f"stretto-{calls.rank}", busy=calls._set_busy)
    return calls._worker


def _rest(calls: CallRunner, stream: Any, *kept: Any) -> Tail:
    session: Any = calls._sessions[GPU]
    return Tail(mark=session.mark(stream), hear=calls._hear, kept=kept)
