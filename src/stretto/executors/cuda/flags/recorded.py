"""What one session tells recordings: calls that it enqueues, and whose steps are whose.

A call is noted by the host when it is enqueued, or captured; when it ran only the GPU
knows. Kernels that write their steps (steps.py) say that as well, also of replays: as
calls of `NAME/gpuN`, N the set of flags that they ran with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from stretto.compiler.plan import Plan, PlanLayout
from stretto.executors import Call, Group, call_kind, comm_of
from stretto.executors.cuda.flags.regions import FlagRegion
from stretto.executors.cuda.flags.steps import (
    FlagPlace,
    KnownSteps,
    StepsMemory,
    known_kernel,
)
from stretto.fabric.jit.loading import load
from stretto.trace import CallKind, Ring, close_ring, open_ring

MOST_KNOWN = 1 << 14
"""Kernels whose steps are understood; each pair of zero-copy arrays may be one."""


class Noting(Protocol):
    """A launch, which notes its calls."""

    note: Callable[[int], object] | None


class Recorded:
    """The ring of a session, and what its kernels are."""

    def __init__(self, group: Group) -> None:
        """Open the ring of the group's communicator."""
        self._group = group
        self._comm, self._world = comm_of(group)
        self.ring: Ring | None = open_ring(
            group, self._comm, self._world, few=group.only_transfers
        )
        if self.ring is not None:  # a call is noted in a fifth of what Python takes
            (records,) = load("recording calls", "stretto.fabric.jit.records")
            self._noter = records.noter
        self._kinds: dict[int, CallKind] = {}
        self._known: dict[int, KnownSteps] = {}
        self._places: list[int] = []
        self._memory: StepsMemory | None = None

    def notes(self, launch: Noting, mark: int, plan: Plan, call: Call) -> None:
        """Name the calls of a fingerprint, and let a launch note each that it makes."""
        kind = self._kinds[mark] = call_kind(plan, call, "cuda")
        if self.ring is not None:
            number = self.ring.define(kind)
            launch.note = self._noter(self.ring.address, number)

    def know(self, mark: int, text: str, plan: Plan, where: PlanLayout) -> None:
        """Remember what a kernel does, so that its steps are understood."""
        if len(self._known) >= MOST_KNOWN:
            self._known.clear()
        kind = self._kinds.get(mark)
        self._known[mark] = known_kernel(plan, where, self._group.rank, kind, text)

    def also(self, mark: int, of: int) -> None:
        """Remember that a fingerprint is another's, on arrays that lie elsewhere."""
        if of in self._known and mark not in self._known:
            self._known[mark] = self._known[of]

    def write_to(
        self, memory: StepsMemory, base: int, regions: Sequence[FlagRegion]
    ) -> None:
        """Say whose the steps are that kernels of this session write."""
        if self._memory is not None:
            return
        self._memory = memory
        for nth, region in enumerate(regions):
            comm = replace(self._comm, name=f"{self._comm.name}/gpu{nth}")
            memory.places[base + region.control] = FlagPlace(
                comm, self._world, self._known
            )
            self._places.append(base + region.control)

    def asked(self, ns: int) -> None:
        """Say when the next call was asked for."""
        if self.ring is not None:
            self.ring.enqueued(ns)

    def close(self) -> None:
        """Give the ring back: what was written is taken first."""
        if self.ring is not None:
            self.ring = None
            close_ring(self._group)
        for place in self._places:
            if self._memory is not None:
                self._memory.places.pop(place, None)
        self._places.clear()
