"""The memory that all contenders share: two pools, cut to size for each case."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np

from stretto import collectives
from stretto.bench.peers import device_arrays
from stretto.bench.workload.cases import Case
from stretto.bench.workload.contender import Buffer, host_buffer
from stretto.bench.workload.task import Task
from stretto.bench.workload.timing import Call, Timer
from stretto.calls import Communicator
from stretto.collectives import storage
from stretto.errors import CallError

__all__ = ["Pools"]

_APART = 4096
"""Bytes between the two: they do not start in the same cache sets."""


class Pools:
    """Input and output memory; the communicator's own where that is asked for."""

    settle: Call | None = None
    capture: Callable[[Call, int], Call] | None = None
    """On a GPU: make a graph of several calls, and return what replays it."""
    timer: Timer | None = None
    """On a GPU: times calls by its own clock."""
    copy_gbps: Callable[[], float] | None = None
    """On a GPU: the rate at which it copies to the next rank's."""
    compute_for: Callable[[float], Call] | None = None
    """On a GPU: return what computes about so many microseconds, beside our stream."""
    arch: tuple[int, int] | None = None
    """Of the GPU: its compute capability."""

    def __init__(self, comm: Communicator, task: Task, cases: list[Case]) -> None:
        """Allocate for the largest case (collective)."""
        self._task, self._rank = task, comm.rank
        self._arrays: Any = None
        item = storage(task.dtype).itemsize
        counts = [case.elements(q) for case in cases for q in range(task.num_ranks)]
        largest = max((max(pair) for pair in counts), default=0) + 2 * _APART // item
        if task.device == "cuda":
            self._open_gpu(comm, largest)
        else:
            self._pools = [self._host(comm, largest) for _ in range(2)]
            if task.buffer == "torch":
                self._arrays = device_arrays("host_torch", comm, registered=False)

    def _host(self, comm: Communicator, count: int) -> Any:
        if not self._task.registered:
            return np.zeros(count, storage(self._task.dtype))
        if self._task.buffer == "bytearray":
            raise CallError("--registered memory is comm.empty(), not a bytearray")
        return comm.empty(count, self._task.dtype)

    def _open_gpu(self, comm: Communicator, count: int) -> None:
        kind, registered = self._task.buffer, self._task.registered
        gpu = device_arrays(kind, comm, registered=registered)
        self._pools = [gpu.empty(count, self._task.dtype) for _ in range(2)]
        self._arrays = gpu
        self.settle, self.capture, self.timer = gpu.settle, gpu.capture, gpu.timed
        self.copy_gbps, self.compute_for = gpu.copy_gbps, gpu.compute_for
        self.arch = gpu.arch

    def drain(self) -> None:
        """Wait for what still runs, whatever it meets; then forget the memory."""
        if self.settle is not None:
            with contextlib.suppress(Exception):
                self.settle()
        self._pools.clear()

    def buffers(self, case: Case) -> tuple[Buffer, Buffer]:
        """Return input and output of a case; in place, they are one memory."""
        n_in, n_out = case.elements(self._rank)
        if case.in_place and case.collective not in ("p2p", "gather", "scatter"):
            return self._in_place(case, n_in, n_out)
        return self._buffer(0, 0, n_in), self._buffer(1, 0, n_out)

    def _in_place(self, case: Case, n_in: int, n_out: int) -> tuple[Buffer, Buffer]:
        kind = collectives.get(case.collective)
        at = kind.in_place(case.shape, self._rank)
        before = sum(case.counts[: self._rank]) if n_in != n_out else 0
        if case.collective in ("broadcast", "reduce"):
            whole = self._buffer(0, 0, max(n_in, n_out))
            none = self._buffer(1, 0, 0)
            return whole if n_in else none, whole if n_out else none
        if at is None:
            return self._buffer(0, 0, n_in), self._buffer(0, before, n_out)
        out = self._buffer(0, 0, n_out)
        return (out if n_in == n_out else self._buffer(0, before, n_in)), out

    def _buffer(self, pool: int, start: int, count: int) -> Buffer:
        start += pool * _APART // storage(self._task.dtype).itemsize
        part = self._pools[pool][start : start + count]
        if self._arrays is None:
            return host_buffer(self._task.buffer, part, self._task.dtype)
        found: Buffer = self._arrays.buffer(part, self._task.dtype)
        return found
