"""A stream for started transfers, beside the caller's.

Who sends to one rank and then receives from another must not wait, on its own stream,
for somebody who does the same.
"""

from __future__ import annotations

import weakref

from stretto.executors.cuda.device.driver import Device, JoinedStream, api, ask


class SideStream:
    """A stream for started calls, each after what the caller's was given before."""

    def __init__(self, device: Device) -> None:
        self._device = device
        device.enter()
        self._side = JoinedStream()
        self.stream = int(self._side.stream)
        weakref.finalize(self, self._side.close)

    def after(self, stream: int) -> int:
        """Let what comes next wait for a stream; return the handle of ours."""
        self._device.require_context()
        ask("cuEventRecord", self._side.begin, api().CUstream(stream))
        ask("cuStreamWaitEvent", self._side.stream, self._side.begin, 0)
        return self.stream
