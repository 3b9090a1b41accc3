"""The communicator that is measured, and its memory; made anew when a call breaks it.

Ranks tell one another things through another communicator, the parent of this one. So
when a plan hangs, faults, or dies on one rank, only what was measured is lost.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from stretto.bench.contender import CallBuffer, Contender, host_buffer
from stretto.bench.measuring.control import Control
from stretto.bench.measuring.loop import Limits, Timings, measure
from stretto.bench.peers import device_arrays
from stretto.bench.peers._ours import OurCalls
from stretto.bench.timing import Call, Timer
from stretto.bench.workload.cases import CallCase
from stretto.bench.workload.task import BenchTask
from stretto.errors import CallError
from stretto.program import collectives
from stretto.program.collectives import storage
from stretto.runtime.calls import Communicator
from stretto.runtime.choice import Pin

_APART = 4096
"""Bytes between two pools: they do not start in the same cache sets."""


class Target:
    """What is measured, on this rank."""

    def __init__(
        self,
        parent: Communicator,
        control: Control,
        task: BenchTask,
        cases: list[CallCase],
        *,
        deadline_s: float | None = None,
    ) -> None:
        """Open it (collective); no call may wait longer than `deadline_s`."""
        self._parent, self._control, self._task = parent, control, task
        self._cases, self._deadline_s = cases, deadline_s
        self.dtype = task.dtype
        self.rebuilt = 0
        """How often a call has broken it."""
        self._open()

    def _open(self) -> None:
        comm = self._parent.split(0)
        assert comm is not None, "everybody has the same color"
        self.comm: Communicator = comm
        self.pools = Pools(comm, self._task, self._cases)
        self._control.barrier()  # a GPU may take long to be found
        if self._deadline_s is not None:
            comm._group.deadline_s = self._deadline_s

    def ours(self, pin: Pin = None) -> OurCalls:
        """Return stretto as a contender, with what it chooses or under a pin."""
        return OurCalls(
            self.comm, pin=pin, settle=self.pools.settle, device=self._task.device
        )

    def measure(
        self,
        case: CallCase,
        pins: Mapping[str, Pin],
        others: Mapping[str, Contender],
        *,
        limits: Limits,
        seed: int,
    ) -> dict[str, Timings]:
        """Measure stretto under pins, and others beside it (collective).

        What breaks the communicator counts as failed, and the rest goes on.
        """
        results: dict[str, Timings] = {}
        left, beside = dict(pins), dict(others)
        while left or beside:
            ours = {name: self.ours(pin) for name, pin in left.items()}
            x, out = self.pools.buffers(case)
            found = measure(
                self._control, case, ours | beside, x, out,
                limits=self._timed(limits), seed=seed,
            )  # fmt: skip
            for one in ours.values():
                with contextlib.suppress(Exception):  # a broken pair is gone anyhow
                    one.close()
            broke = {n: at for n in ours if (at := found[n].broke_at) is not None}
            if not broke:
                results |= found
                break
            first = min(broke, key=lambda name: broke[name])
            results |= {n: f for n, f in found.items() if n not in broke}
            results[first] = found[first]
            left = {n: left[n] for n in broke if n != first}
            beside = {}
            del ours, x, out, found
            self.rebuild()
        return {name: results[name] for name in (*pins, *others)}

    def _timed(self, limits: Limits) -> Limits:
        """Return the limits, with the clock and the graphs of where the memory is."""
        graphs = self._task.mode == "graph"
        return replace(
            limits,
            timer=self.pools.timer,
            capture=self.pools.capture if graphs else limits.capture,
        )

    def rebuild(self) -> None:
        """Make it anew (collective)."""
        self.rebuilt += 1
        pools, self.pools = self.pools, None  # type: ignore[assignment]
        pools.drain()
        del pools  # its memory is the communicator's
        self._control.barrier()  # nobody closes what another's kernel still looks at
        with contextlib.suppress(Exception):
            self.comm.close()
        self._control.barrier()
        self._open()

    def close(self) -> None:
        """Give it back."""
        self.comm.close()


class Pools:
    """The memory that all contenders share: two pools, cut to size for each case.

    It is the communicator's own where that is asked for.
    """

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

    def __init__(
        self, comm: Communicator, task: BenchTask, cases: list[CallCase]
    ) -> None:
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

    def buffers(self, case: CallCase) -> tuple[CallBuffer, CallBuffer]:
        """Return input and output of a case; in place, they are one memory."""
        n_in, n_out = case.elements(self._rank)
        if case.in_place and case.collective not in ("p2p", "gather", "scatter"):
            return self._in_place(case, n_in, n_out)
        return self._buffer(0, 0, n_in), self._buffer(1, 0, n_out)

    def _in_place(
        self, case: CallCase, n_in: int, n_out: int
    ) -> tuple[CallBuffer, CallBuffer]:
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

    def _buffer(self, pool: int, start: int, count: int) -> CallBuffer:
        start += pool * _APART // storage(self._task.dtype).itemsize
        part = self._pools[pool][start : start + count]
        if self._arrays is None:
            return host_buffer(self._task.buffer, part, self._task.dtype)
        found: CallBuffer = self._arrays.buffer(part, self._task.dtype)
        return found
