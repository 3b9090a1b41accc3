"""A stream of our own for copies that nobody's stream shall wait for."""

from __future__ import annotations

from stretto.errors import CallError
from stretto.executors.cuda.device.driver import Device, api, ask, attempt, capturing


class CopyLane:
    """See the module; `stream` is its handle."""

    def __init__(self, device: Device) -> None:
        self._device = device
        device.enter()
        flags = int(api().CUstream_flags.CU_STREAM_NON_BLOCKING)
        self.stream = int(ask("cuStreamCreate", flags))

    def follow(self, stream: int) -> None:
        """Let what comes next wait for all that a stream was given until now."""
        self._device.enter()
        if capturing(stream):
            raise CallError(
                "a graph is captured on this stream, and these bytes go through this "
                "process: they cannot be part of it; put them outside of the graph"
            )
        event = ask("cuEventCreate", int(api().CUevent_flags.CU_EVENT_DISABLE_TIMING))
        try:
            ask("cuEventRecord", event, api().CUstream(stream))
            ask("cuStreamWaitEvent", api().CUstream(self.stream), event, 0)
        finally:
            attempt("cuEventDestroy", event)

    def wait(self) -> None:
        """Return when all it was given is done."""
        self._device.enter()
        ask("cuStreamSynchronize", api().CUstream(self.stream))

    def close(self) -> None:
        """End it, when all it was given is done."""
        self._device.enter()
        attempt("cuStreamSynchronize", api().CUstream(self.stream))
        attempt("cuStreamDestroy", api().CUstream(self.stream))
