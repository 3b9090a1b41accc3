"""A point in a stream: whoever has started a call waits for it there."""

from __future__ import annotations

import weakref

from stretto.errors import DeviceError
from stretto.executors.cuda.device.driver import (
    Device,
    api,
    ask,
    attempt,
    capturing,
    current_stream,
    untimed_event,
)


class StreamMark:
    """What a stream had been given when this was made."""

    def __init__(self, device: Device, stream: int) -> None:
        self._device = device
        self._stream = stream
        device.require_context()
        self.captured = bool(capturing(stream))
        self._event = untimed_event()
        ask("cuEventRecord", self._event, api().CUstream(stream))
        weakref.finalize(self, attempt, "cuEventDestroy", self._event)

    @property
    def is_reached(self) -> bool:
        """Return whether the stream has come to it."""
        self._device.require_context()
        (error,) = api().cuEventQuery(self._event)
        if error == api().CUresult.CUDA_ERROR_NOT_READY:
            return False
        if int(error):
            raise DeviceError(f"cuEventQuery: {error.name}")
        return True

    def follow(self) -> None:
        """Let what the caller's current stream is given from now on wait for it."""
        self._device.require_context()
        stream = current_stream(self._device.ordinal)
        if stream != self._stream:
            ask("cuStreamWaitEvent", api().CUstream(stream), self._event, 0)
