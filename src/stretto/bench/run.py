"""One rank's part of a run: open the contenders, measure case after case."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stretto import algorithms
from stretto.bench import machine, peers
from stretto.bench.arrays import Pools
from stretto.bench.cases import Case
from stretto.bench.contender import Contender, Setup
from stretto.bench.control import Control
from stretto.bench.measure import Found, Limits, measure
from stretto.bench.ours import Ours
from stretto.bench.overlap import compute_for, hidden, overlapped
from stretto.bench.rows import OURS, Row, row_of
from stretto.bench.task import Task
from stretto.runtime import Communicator, spell_size

__all__ = ["Say", "work"]

Say = Callable[[str], None]
"""Tells whoever watches what is being done."""
_OVERLAPS = 9
_OVERLAP_US = 2e3


def work(comm: Communicator, task: Task, say: Say) -> dict[str, Any]:
    """Measure all cases; return rank 0's document, and nothing on the others."""
    control = Control(comm)
    rank = _Rank(comm, control, task)
    cases = task.cases()
    pools = Pools(comm, task, cases)
    floor = machine.limits(control, pools.copy_gbps)
    missing = rank.open(pools)
    rows: list[Row] = []
    for at, case in enumerate(cases):
        if control.rank == 0:
            said = f"{case.test} {spell_size(case.nbytes)}"
            say(f"[{at + 1}/{len(cases)}] {said}")
        rows += rank.case(case, pools, len(cases), floor)
    rank.close()
    if control.rank:
        return {}
    return {"limits": floor, "missing": missing, "rows": [r.as_json() for r in rows]}


class _Rank:
    """The contenders of one rank."""

    def __init__(self, comm: Communicator, control: Control, task: Task) -> None:
        self._comm, self._control, self._task = comm, control, task
        self._contenders: dict[str, Contender] = {}
        self._ours: Ours | None = None

    def open(self, pools: Pools) -> dict[str, str]:
        """Open stretto and its peers; return why a peer is missing."""
        task, comm = self._task, self._comm
        self._ours = Ours(comm, settle=pools.settle, device=task.device)
        self._contenders[OURS] = self._ours
        setup = Setup(
            rank=comm.rank, num_ranks=comm.num_ranks, meet=task.meet, device=task.device
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
                self._contenders[name] = contender
        return missing

    def close(self) -> None:
        """Close everything but the communicator."""
        for contender in self._contenders.values():
            contender.close()

    def case(
        self, case: Case, pools: Pools, num_cases: int, floor: dict[str, float]
    ) -> list[Row]:
        """Measure one case; return its rows on rank 0."""
        task = self._task
        x, out = pools.buffers(case)
        contenders = dict(self._contenders) | self._pinned(case, pools)
        limits = Limits(
            batch_us=task.batch_us,
            batches=task.batches,
            budget_us=task.budget_s / num_cases * 1e6,
            cold=task.cold,
            capture=pools.capture if task.mode == "graph" else None,
        )
        found = measure(
            self._control, case, contenders, x, out, limits=limits, seed=task.seed
        )
        hides = None
        if task.mode == "overlapped" and case.collective != "p2p":
            hides = self._overlap(case, pools, found[OURS])
        if self._control.rank:
            return []
        explained = {n: self._explained(c, case) for n, c in contenders.items()}
        return [
            row_of(case, task, name, one, explained[name], found[OURS], floor, hides)
            for name, one in found.items()
        ]

    def _pinned(self, case: Case, pools: Pools) -> dict[str, Contender]:
        """Return the variants of stretto that were asked for, for this case."""
        pins = list(self._task.pins)
        if "all" in pins:
            pins.remove("all")
            if case.collective not in ("p2p", "barrier"):
                names = algorithms.of(case.collective, case.num_ranks)
                pins += [found.name for found in names]
        pins = [pin for pin in pins if pin.split("/")[0] == case.collective]
        return {
            pin: Ours(
                self._comm, pin=pin, settle=pools.settle, device=self._task.device
            )
            for pin in pins
        }

    def _explained(self, contender: Contender, case: Case) -> str:
        if not isinstance(contender, Ours):
            return ""
        try:
            return contender.explain(case, registered=self._task.registered)
        except Exception as e:
            return f"{type(e).__name__}"

    def _overlap(self, case: Case, pools: Pools, found: Found) -> float | None:
        """Return the share of a call that computing hides, the worst rank's."""
        if found.refused or not found.us.size or self._ours is None:
            return None
        us = self._control.agree(float(found.us.max(axis=0).mean()))
        x, out = pools.buffers(case)
        start = self._ours.start(case, x, out)
        compute = compute_for(us)
        turns = self._control.agree(max(1, min(200, int(_OVERLAP_US / max(us, 1.0)))))
        shares = [
            hidden(overlapped(start, compute, turns, self._control.barrier))
            for _ in range(_OVERLAPS)
        ]
        told: list[float] = self._control.gather(sorted(shares)[len(shares) // 2])
        return min(told)
