"""A launch made again on the same arrays: nothing is asked twice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stretto.errors import CallError, DeviceError
from stretto.executors.cuda.device.driver import stream_question


def repeat(
    launch: Any, key: tuple[int, int], stream: int | None = None
) -> Callable[..., bool]:
    """Return a launch on arrays at these addresses, on the current stream.

    For whoever knows that the arrays are still the same. A stream that is said waits
    for another before each call and is in no capture: nothing could begin early there.
    Of such a call an event and the other stream may be given, each as its handle: then
    the driver is told so, too, and the event is one of the call's end; False: it could
    not be, and nothing was launched.
    """
    ordinal, kernel, note = launch._ordinal, launch._kernel, launch.note
    state, watch, streams = launch._state, launch._watch, launch._streams
    enqueue, inside = launch._launch, launch._inside
    stream_of = stream_question()
    if stream is not None:
        stream_of = lambda _: stream  # noqa: E731
        enqueue = kernel and kernel.loaded.launch_late
    direct: dict[int, Callable[[int, None], int]] = {}
    """What the driver is asked by, on streams that were seen."""
    behind = _behind(launch, key, stream or 0)

    def again(event: int = 0, caller: int = 0) -> bool:
        if inside[0]:
            raise second_thread()
        inside[0] = 1
        try:
            if watch.fault is not None or state[0]:
                watch.check()
            if event:
                return behind(event, caller)
            handle = stream_of(ordinal)
            if note is not None:
                note(handle)
            parameters = streams.get(handle)
            if parameters is None:
                launch._in_turn(handle, key)
                return True
            found = parameters.kept.get(key)
            if found is None:
                found = parameters.pack(key)
            if handle in direct:
                error = direct[handle](found, None)
            else:
                error = enqueue(handle, found)
                if at_once := kernel.loaded.directly(handle, stream):
                    direct[handle] = at_once
            if error:
                kernel.enqueue(handle, found)
            return True
        finally:
            inside[0] = 0

    return again


def _behind(
    launch: Any, key: tuple[int, int], stream: int
) -> Callable[[int, int], bool]:
    """Return what launches on `stream` behind another, if it can."""
    streams, note = launch._streams, launch.note
    builtin: list[Callable[[int, int, int], int]] = []

    def behind(event: int, caller: int) -> bool:
        parameters = streams.get(stream)
        if parameters is None:
            return False
        if not builtin:
            made = launch._kernel.loaded.behind(stream)
            if made is None:
                return False
            builtin.append(made)
        found = parameters.kept.get(key)
        if found is None:
            found = parameters.pack(key)
        if note is not None:
            note(stream)
        error = builtin[0](event, caller, found)
        if error < 0:  # launched, so nobody may launch it again
            raise DeviceError(f"cuEventRecord behind a launch: error {-error}")
        return not error

    return behind


def second_thread() -> CallError:
    """Return what a thread is told that comes while another launches."""
    return CallError(
        "another thread, or what a signal has broken into, is just launching a call of "
        "this communicator; one thread at a time may use it: give each one of its own, "
        "by split(0)"
    )
