"""Device primitives for kernels of your own: the layer under ours, with handles.

    channels = session.channels(nbytes)         # collective
    kernel = compile_kernel(channels.kernel(text, grid=1, threads=128), arch=...)

A kernel includes `channel.cuh` (`stretto.executors.cuda.include_path()`) and takes the
address of the handles: `const stretto::MemoryChannel* channels`, one for every rank,
this rank's own among them, unused.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import numpy as np

from stretto.errors import CallError
from stretto.executors.cuda.driver import ask

if TYPE_CHECKING:
    from stretto.executors.cuda.arrays import DeviceArray
    from stretto.executors.cuda.session import CudaSession

__all__ = ["CHANNEL", "Channels"]

CHANNEL = np.dtype(
    [
        ("local", "<u8"),
        ("remote", "<u8"),
        ("inbox", "<u8"),
        ("outbox", "<u8"),
        ("counts", "<u8"),
        ("control", "<u8"),
        ("record", "<u8"),
        ("deadline_ns", "<u8"),
        ("rank", "<i4"),
        ("peer", "<i4"),
    ]
)
"""`stretto::MemoryChannel`, as C lays it out."""


class Channels:
    """A buffer on every rank, and a channel to every peer."""

    def __init__(self, session: CudaSession, nbytes: int) -> None:
        if nbytes < 1:
            raise CallError(f"channels of {nbytes} bytes; want at least 1")
        n = session.group.num_ranks
        self.buffer: DeviceArray = session.empty((nbytes,), "uint8")
        self._words: DeviceArray = session.empty((3 * n,), "uint64")
        self._table: DeviceArray = session.empty((n * CHANNEL.itemsize,), "uint8")
        for array in (self.buffer, self._words):
            ask("cuMemsetD8", array.pointer, 0, array.nbytes)
        handles = self._describe(session, n)
        raw = handles.tobytes()
        source = ctypes.create_string_buffer(raw, len(raw))
        ask("cuMemcpyHtoD", self._table.pointer, ctypes.addressof(source), len(raw))
        ask("cuCtxSynchronize")
        session.group.exchange({"channels": nbytes})  # zeroed before anybody signals

    @property
    def pointer(self) -> int:
        """Return the address of the handles, one a rank."""
        return self._table.pointer

    def _describe(self, session: CudaSession, n: int) -> np.ndarray:
        """Return the handles: a word in for each peer, then two counts for each."""
        space, me = session.space, session.group.rank
        buffer, words = session.offset(self.buffer), session.offset(self._words)
        assert buffer is not None, "it was registered above"
        assert words is not None, "it was registered above"
        handles = np.zeros(n, CHANNEL)
        control = session.slab.base + session.regions[0].control
        for q in range(n):
            one = handles[q]
            one["local"] = self.buffer.pointer
            one["remote"] = space.peer_address(q, buffer)
            one["inbox"] = self._words.pointer + 8 * q
            one["outbox"] = space.peer_address(q, words) + 8 * me
            one["counts"] = self._words.pointer + 8 * (n + 2 * q)
            one["control"] = control
            one["record"] = session.watch.record
            one["deadline_ns"] = int(session.group.deadline_s * 1e9)
            one["rank"], one["peer"] = me, q
        return handles
