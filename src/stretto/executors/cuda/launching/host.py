"""What the ways to run a call need of a session, without knowing it.

`CudaSession` chooses among them and lends each its memory, streams and kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from stretto.executors import Call
from stretto.executors.cuda.codegen.abi import Kernel
from stretto.executors.cuda.device.arrays import DeviceArray
from stretto.executors.cuda.device.driver import Device, Side
from stretto.executors.cuda.device.memory import Slab
from stretto.executors.cuda.flags.enginewatch import EngineWatch
from stretto.executors.cuda.flags.regions import Region
from stretto.executors.cuda.launching.bound import Home, KernelLaunch
from stretto.executors.cuda.launching.launch import Loaded
from stretto.executors.cuda.launching.proxy import Proxy
from stretto.ir import Verified
from stretto.lower import Batched
from stretto.plan import Plan

__all__ = ["Host"]


class Host(Home, Protocol):
    """One rank's GPU, memory, flags and kernels."""

    device: Device
    regions: tuple[Region, ...]
    slab: Slab

    def empty(self, shape: Sequence[int], dtype: str) -> DeviceArray:
        """Return registered memory, at the same offset on every rank (collective)."""

    def offset(self, array: Any) -> int | None:
        """Return where registered memory begins, the same on every rank, or None."""

    def load_call(self, plan: Batched, call: Call, share: int = 0) -> Loaded:
        """Return the kernel of a plan for a kind of call, compiled and loaded."""

    def load_kernel(self, kernel: Kernel) -> Loaded:
        """Compile and load a kernel, once."""

    def kernel_launch(
        self,
        plan: Verified[Plan],
        call: Call,
        sizes: Any,
        mark: int,
        extra: Sequence[int] = (),
    ) -> KernelLaunch:
        """Bind a plan to a kernel of its own."""

    def barrier(self, mark: int, plan: Plan) -> KernelLaunch:
        """Return a barrier of everybody as a kernel, for the calls of a plan."""

    def engine_watch(self) -> EngineWatch:
        """Return the deadlines of copy-engine calls, made at their first use."""

    def side_streams(self, count: int) -> list[Side]:
        """Return so many streams of our own, with events to fork and join."""

    def proxy(self) -> Proxy:
        """Return the thread that serves engine channels, started at its first use."""
