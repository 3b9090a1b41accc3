"""What launches need of the session that makes them, without knowing it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from stretto.compiler.plan import Batched
from stretto.executors import Call, Group
from stretto.executors.cuda.codegen.abi import Kernel
from stretto.executors.cuda.device.arrays import DeviceArray
from stretto.executors.cuda.device.driver import Device, JoinedStream
from stretto.executors.cuda.device.memory import Slab
from stretto.executors.cuda.device.space import AddressSpace
from stretto.executors.cuda.flags.flagsets import FlagSets
from stretto.executors.cuda.flags.recorded import Recorded
from stretto.executors.cuda.flags.regions import FlagRegion
from stretto.executors.cuda.flags.watch import SessionWatch
from stretto.executors.cuda.launching.kernels import Loaded

if TYPE_CHECKING:
    from stretto.executors.cuda.hosts.way import FarWay


class SessionServices(Protocol):
    """One rank's GPU, memory, flags and kernels."""

    group: Group
    device: Device
    regions: tuple[FlagRegion, ...]
    slab: Slab
    space: AddressSpace
    watch: SessionWatch
    flags: FlagSets
    far: FarWay | None
    """The way to ranks on other hosts, where there are such."""
    recorded: Recorded

    def empty(self, shape: Sequence[int], dtype: str) -> DeviceArray:
        """Return registered memory, at the same offset on every rank (collective)."""

    def offset(self, array: Any) -> int | None:
        """Return where registered memory begins, the same on every rank, or None."""

    def load_call(
        self, plan: Batched, call: Call, *, share: int = 0, counted: bool = False
    ) -> Loaded:
        """Return the kernel of a plan for a kind of call, compiled and loaded."""

    def load_kernel(self, kernel: Kernel) -> Loaded:
        """Compile and load a kernel, once."""

    def side_streams(self, count: int) -> list[JoinedStream]:
        """Return so many streams of our own, with events to fork and join."""
