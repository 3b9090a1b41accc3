"""The communicator that is measured, and its memory; made anew when a call breaks it.

Ranks tell one another things through another communicator, the parent of this one. So
when a plan hangs, faults, or dies on one rank, only what was measured is lost.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import replace

from stretto.bench.measuring.arrays import Pools
from stretto.bench.measuring.control import Control
from stretto.bench.measuring.measure import measure
from stretto.bench.measuring.ours import Ours
from stretto.bench.measuring.runner import Found, Limits
from stretto.bench.workload.cases import Case
from stretto.bench.workload.contender import Contender
from stretto.bench.workload.task import Task
from stretto.calls import Communicator
from stretto.choice import Pin

__all__ = ["Target"]


class Target:
    """What is measured, on this rank."""

    def __init__(
        self,
        parent: Communicator,
        control: Control,
        task: Task,
        cases: list[Case],
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

    def ours(self, pin: Pin = None) -> Ours:
        """Return stretto as a contender, with what it chooses or under a pin."""
        return Ours(
            self.comm, pin=pin, settle=self.pools.settle, device=self._task.device
        )

    def measure(
        self,
        case: Case,
        pins: Mapping[str, Pin],
        others: Mapping[str, Contender],
        *,
        limits: Limits,
        seed: int,
    ) -> dict[str, Found]:
        """Measure stretto under pins, and others beside it (collective).

        What breaks the communicator counts as failed, and the rest goes on.
        """
        results: dict[str, Found] = {}
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
