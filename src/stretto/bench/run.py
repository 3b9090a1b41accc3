"""One rank's part of a run: open the contenders, measure case after case."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stretto import algorithms
from stretto.bench import machine, peers
from stretto.bench.ahead import Ahead
from stretto.bench.cases import Case
from stretto.bench.contender import Contender, Setup
from stretto.bench.control import Control
from stretto.bench.ours import Ours
from stretto.bench.overlap import compute_for, hidden, overlapped
from stretto.bench.rows import OURS, Row, row_of
from stretto.bench.runner import Found, Limits
from stretto.bench.target import Target
from stretto.bench.task import Task
from stretto.runtime import Communicator, Pin, spell_size

__all__ = ["Say", "work"]

Say = Callable[[str], None]
"""Tells whoever watches what is being done."""
_DEADLINE_S = 10.0
"""How long a variant that was asked for may hang; the others are then measured."""
_OVERLAPS = 9
_OVERLAP_US = 2e3


def work(comm: Communicator, task: Task, say: Say) -> dict[str, Any]:
    """Measure all cases; return rank 0's document, and nothing on the others."""
    rank = _Rank(comm, task)
    missing = rank.open()
    rows: list[Row] = []
    for at, case in enumerate(rank.cases):
        if comm.rank == 0:
            said = f"{case.test} {spell_size(case.nbytes)}"
            say(f"[{at + 1}/{len(rank.cases)}] {said}")
        rows += rank.case(case)
    rank.close()
    if comm.rank:
        return {}
    return {
        "limits": rank.floor,
        "missing": missing,
        "rows": [r.as_json() for r in rows],
    }


class _Rank:
    """The contenders of one rank."""

    def __init__(self, comm: Communicator, task: Task) -> None:
        self._comm, self._control, self._task = comm, Control(comm), task
        self.cases = task.cases()
        deadline_s = _DEADLINE_S if task.pins else None
        self._target = Target(
            comm, self._control, task, self.cases, deadline_s=deadline_s
        )
        self._peers: dict[str, Contender] = {}
        self._ahead = Ahead(
            task.device, comm.rank, comm.num_ranks,
            dtype=task.dtype, op=task.op, arch=self._target.pools.arch,
        )  # fmt: skip
        for case in self.cases:
            self._ahead.start(self._explained_all(case), case)
        self.floor = machine.limits(self._control, self._target)

    def open(self) -> dict[str, str]:
        """Open the peers; return why a peer is missing."""
        task, comm = self._task, self._comm
        setup = Setup(
            rank=comm.rank,
            num_ranks=comm.num_ranks,
            meet=task.meet,
            device=task.device,
            largest=max((case.buffer_bytes for case in self.cases), default=0),
        )
        missing: dict[str, str] = {}
        for name in task.peers:
            contender, reason = None, ""
            try:
                module = peers.get(name)
                if task.device not in module.DEVICES:
                    reason = f"runs on {' and '.join(module.DEVICES)} only"
                else:
                    contender = module.open_peer(setup)
            except Exception as e:
                reason = f"{type(e).__name__}: {e}".splitlines()[0]
            reasons = [r for r in self._control.gather(reason) if r]
            if reasons:
                missing[name] = reasons[0]
            elif contender is not None:
                self._peers[name] = contender
        return missing

    def close(self) -> None:
        """Close everything but the communicator that we were given."""
        self._ahead.close()
        for contender in self._peers.values():
            contender.close()
        self._target.close()

    def case(self, case: Case) -> list[Row]:
        """Measure one case; return its rows on rank 0."""
        task = self._task
        pins: dict[str, Pin] = {OURS: None}
        pins |= {pin: pin for pin in self._pins(case)}
        self._ahead.wait(self._explained_all(case), case)
        limits = Limits(
            batch_us=task.batch_us,
            batches=task.batches,
            budget_us=task.budget_s / len(self.cases) * 1e6,
            cold=task.cold,
        )
        found = self._target.measure(
            case, pins, self._peers, limits=limits, seed=task.seed
        )
        hides = None
        if task.mode == "overlapped" and case.collective != "p2p":
            hides = self._overlap(case, found[OURS])
        if self._control.rank:
            return []
        return [
            row_of(
                case, task, name, one,
                self._explained(self._target.ours(pins[name]), case)
                if name in pins else "",
                found[OURS], self.floor, hides,
            )
            for name, one in found.items()
        ]  # fmt: skip

    def _pins(self, case: Case) -> list[str]:
        """Return the variants of stretto that were asked for, for this case."""
        pins = list(self._task.pins)
        if "all" in pins:
            pins.remove("all")
            if case.collective not in ("p2p", "barrier"):
                names = algorithms.of(case.collective, case.num_ranks)
                pins += [found.name for found in names]
        return [pin for pin in pins if pin.split("/")[0] == case.collective]

    def _explained_all(self, case: Case) -> list[str]:
        """Return what all our contenders will run, spelled out."""
        pins: list[Pin] = [None, *self._pins(case)]
        told = (self._explained(self._target.ours(pin), case) for pin in pins)
        return [pin for pin in told if "/" in pin]

    def _explained(self, ours: Ours, case: Case) -> str:
        try:
            return ours.explain(case, registered=self._task.registered)
        except Exception as e:
            return f"{type(e).__name__}"

    def _overlap(self, case: Case, found: Found) -> float | None:
        """Return the share of a call that computing hides, the worst rank's."""
        if found.refused or not found.us.size:
            return None
        target, control = self._target, self._control
        us = control.agree(float(found.us.max(axis=0).mean()))
        x, out = target.pools.buffers(case)
        start = target.ours().start(case, x, out)
        compute = (target.pools.compute_for or compute_for)(us)
        turns = control.agree(max(1, min(200, int(_OVERLAP_US / max(us, 1.0)))))
        shares = [
            hidden(
                overlapped(
                    start, compute, turns, control.barrier, settle=target.pools.settle
                )
            )
            for _ in range(_OVERLAPS)
        ]
        told: list[float] = control.gather(sorted(shares)[len(shares) // 2])
        return min(told)
