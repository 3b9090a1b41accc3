"""Calls whose output lies over their input otherwise than plans are proved for.

Unequal parts in place: what arrives for one part would land on another that is still
to be sent. The kernel reads a copy, which the stream makes before it and frees after
it; a graph captures all three.
"""

from __future__ import annotations

from typing import Any

from stretto.collectives import storage
from stretto.executors import Call, Launch
from stretto.executors.cuda.device.arrays import pointer, require_near
from stretto.executors.cuda.device.driver import api, ask, current_stream
from stretto.executors.cuda.flags.regions import symbol_sizes
from stretto.executors.cuda.launching.bound import stream_handle
from stretto.executors.cuda.launching.host import Host
from stretto.plan import Plan, layout

__all__ = ["AsideLaunch", "aside"]


def aside(session: Host, launch: Launch, plan: Plan, call: Call) -> AsideLaunch:
    """Return a launch that reads a copy of its input."""
    where = layout(plan, symbol_sizes(plan, call), 1)
    count = int(where.inputs[session.group.rank][-1])
    nbytes = count * storage(call.dtype).itemsize
    return AsideLaunch(launch, nbytes, session.device.ordinal)


class AsideLaunch:
    """Run a plan on a copy of its input."""

    def __init__(self, launch: Launch, nbytes: int, ordinal: int) -> None:
        """`launch` reads `nbytes` of input."""
        self._launch: Any = launch
        self._nbytes, self._ordinal = nbytes, ordinal

    def __call__(self, x: Any, out: Any = None, stream: Any = None) -> None:
        """Enqueue the copy and the collective on the caller's stream."""
        require_near(x, self._ordinal)
        handle = (
            current_stream(self._ordinal) if stream is None else stream_handle(stream)
        )
        if not self._nbytes:
            self._launch(x, out, stream=handle)
            return
        on = api().CUstream(handle)
        copy = int(ask("cuMemAllocAsync", self._nbytes, on))
        try:
            source = x if type(x) is int else pointer(x)
            ask("cuMemcpyDtoDAsync", copy, source, self._nbytes, on)
            self._launch(copy, out, stream=handle)
        finally:
            ask("cuMemFreeAsync", copy, on)
