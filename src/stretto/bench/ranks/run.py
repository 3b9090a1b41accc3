"""One rank's part of a run: open the contenders, measure case after case."""

from __future__ import annotations

import faulthandler
import functools
import gc
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stretto.bench import machine, peers
from stretto.bench.contender import Contender, Setup
from stretto.bench.measuring.control import Control
from stretto.bench.measuring.loop import Limits, Timings
from stretto.bench.measuring.overlap import hidden_share
from stretto.bench.measuring.precompile import Precompiler
from stretto.bench.measuring.target import Target
from stretto.bench.peers import OURS
from stretto.bench.peers._ours import OurCalls
from stretto.bench.ranks.journal import Journal
from stretto.bench.rows import BenchRow, row_of
from stretto.bench.workload.cases import CallCase
from stretto.bench.workload.task import BenchTask
from stretto.program import algorithms
from stretto.runtime.calls import Communicator
from stretto.runtime.choice import Pin, spell_size

Say = Callable[[str], None]
"""Tells whoever watches what is being done."""
_DEADLINE_S = 10.0
"""How long stretto may hang on a GPU, or a variant; the others are then measured."""
_SILENT_S, _DEADLINES = 12.0, 3.0
"""A rank that hangs so long, and so many deadlines, where none reaches ends itself."""
_CLOSING_S = 12.0


def work(comm: Communicator, task: BenchTask, say: Say) -> dict[str, Any]:
    """Measure all cases; return rank 0's document, and nothing on the others."""
    rank = _Rank(comm, task)
    tell: Say = say if comm.rank == 0 else lambda said: None
    rank.open(tell)
    if what := rank.compiling():
        tell(f"[1/{len(rank.cases)}] {what}")
    rank.compile()
    rows: list[dict[str, Any]] = []
    done = task.options.get("done", ())
    for at, case in enumerate(rank.cases):
        if at in done:
            continue
        tell(f"[{at + 1}/{len(rank.cases)}] {case.test} {spell_size(case.nbytes)}")
        found = [row.as_json() for row in rank.case(at, case)]
        rank.journal.done(at, found)
        rows += found
    rank.close()
    if comm.rank:
        return {}
    return {"limits": rank.floor, "missing": rank.missing, "rows": rows}


class _Rank:
    """The contenders of one rank."""

    def __init__(self, comm: Communicator, task: BenchTask) -> None:
        self._comm, self._control, self._task = comm, Control(comm), task
        self.cases = task.cases()
        self.journal = Journal(str(task.options.get("journal", "")), comm.rank)
        told = float(task.options.get("deadline_s") or 0)
        hangs = task.pins or task.device != "cpu"
        deadline_s = told or (_DEADLINE_S if hangs else None)
        self._silent_s = _SILENT_S + _DEADLINES * (deadline_s or _DEADLINE_S)
        self._target = Target(
            comm, self._control, task, self.cases, deadline_s=deadline_s
        )
        self._peers: dict[str, Contender] = {}
        self.missing: dict[str, str] = {}
        """Why a peer is not there, or no longer."""
        self._precompiler = Precompiler(
            comm.rank, comm.num_ranks,
            dtype=task.dtype, op=task.op, arch=self._target.pools.arch,
        )  # fmt: skip
        for case in self.cases:
            self._precompiler.start(self._explained_all(case), case)
        self.floor = machine.limits(self._control, self._target)

    def open(self, tell: Say) -> None:
        """Open the peers, or note why one is missing."""
        task, comm = self._task, self._comm
        setup = Setup(
            rank=comm.rank,
            num_ranks=comm.num_ranks,
            meet=task.meet,
            device=task.device,
            largest=max((case.buffer_bytes for case in self.cases), default=0),
            registered=task.registered,
        )
        for name in task.peers:
            self._trying([name])
            tell(f"[1/{len(self.cases)}] opening {name}")
            contender, reason = None, ""
            try:
                kind = peers.get(name, Contender)
                if task.device not in kind.DEVICES:
                    reason = f"runs on {' and '.join(kind.DEVICES)} only"
                elif not (reason := kind.missing()):
                    contender = kind.open(setup)
            except Exception as e:
                reason = f"{type(e).__name__}: {e}".splitlines()[0]
            reasons = [r for r in self._control.gather(reason) if r]
            if reasons:
                self.missing[name] = reasons[0]
            elif contender is not None:
                self._peers[name] = contender
        faulthandler.cancel_dump_traceback_later()
        self.journal.opened(self.floor, self.missing)

    def compiling(self) -> str:
        """Return what is being compiled, in words; nothing where nothing is."""
        pins = self._precompiler.asked
        more = f" and {len(pins) - 3} more" if len(pins) > 3 else ""
        plural = "s" if len(pins) > 1 else ""
        told = f"compiling {len(pins)} kernel{plural}: {', '.join(pins[:3])}{more}"
        return told if pins else ""

    def compile(self) -> None:
        """Wait for all kernels: compiling is no part of what is measured beside it."""
        for case in self.cases:
            self._precompiler.wait(self._explained_all(case), case)

    def close(self) -> None:
        """Close everything but the communicator that we were given."""
        if self._is_watched:  # until this process has ended, too
            faulthandler.dump_traceback_later(_CLOSING_S, exit=True)
        gc.collect()  # NCCL's end waits for every graph that holds calls of it
        self._precompiler.close()
        for contender in reversed(self._peers.values()):  # the first has the group
            contender.close()
        self._target.close()

    @property
    def _is_watched(self) -> bool:
        """Return whether somebody starts us again when we end ourselves."""
        return bool(self._task.options.get("journal"))

    @functools.cached_property
    def _stacks(self) -> int:
        """Return where a rank that hangs says in what; one rank's stack is enough."""
        if self._control.rank == 0:
            return sys.stderr.fileno()
        return os.open(os.devnull, os.O_WRONLY)

    def _trying(self, who: Sequence[str], at: int = -1, more_s: float = 0) -> None:
        """Note who is about to be called, and end ourselves if it takes too long."""
        self.journal.trying(who, at)
        if self._is_watched:
            limit_s = self._silent_s + more_s
            faulthandler.dump_traceback_later(limit_s, exit=True, file=self._stacks)

    def case(self, at: int, case: CallCase) -> list[BenchRow]:
        """Measure one case; return its rows on rank 0."""
        task = self._task
        spoilt = task.options.get("spoilt", {}).get(str(at), {})
        pins: dict[str, Pin] = {OURS: None}
        pins |= {pin: pin for pin in self._pins(case)}
        found = {
            name: Timings(refused=True, note=f"the ranks ended: {spoilt[name]}")
            for name in (*pins, *self._peers)
            if name in spoilt
        }
        slow_s = 0.0 if task.device != "cpu" else 60 + 10 * task.budget_s
        limits = Limits(
            batch_us=task.batch_us,
            batches=task.batches,
            budget_us=task.budget_s / len(self.cases) * 1e6,
            cold=task.cold,
            trying=lambda who: self._trying(who, at, slow_s),
        )
        found |= self._target.measure(
            case,
            {name: pin for name, pin in pins.items() if name not in found},
            {name: peer for name, peer in self._peers.items() if name not in found},
            limits=limits,
            seed=task.seed,
        )
        hides = self._hidden(case, found, at) if task.mode == "overlapped" else {}
        faulthandler.cancel_dump_traceback_later()
        found = {name: found[name] for name in (*pins, *self._peers)}
        self._drop_broken(found, case)
        if self._control.rank:
            return []
        return [
            row_of(
                case, task, name, one,
                self._explained(self._target.ours(pins[name]), case)
                if name in pins else "",
                found[OURS], self.floor, hides.get(name),
            )
            for name, one in found.items()
        ]  # fmt: skip

    def _drop_broken(self, found: Mapping[str, Timings], case: CallCase) -> None:
        """Call no peer again that raised or hung where the others waited for it."""
        for name in list(self._peers):
            if found[name].broke_at is not None:
                where = f"{case.test} {spell_size(case.nbytes)}"
                self.missing[name] = f"from {where} on: {found[name].note}"
                self.journal.lost(name, self.missing[name])
                del self._peers[name]

    def _pins(self, case: CallCase) -> list[str]:
        """Return the variants of stretto that were asked for, for this case."""
        pins = list(self._task.pins)
        if "all" in pins:
            pins.remove("all")
            if case.collective not in ("p2p", "barrier"):
                names = algorithms.of(case.collective, case.num_ranks)
                pins += [found.name for found in names]
        return [pin for pin in pins if pin.split("/")[0] == case.collective]

    def _explained_all(self, case: CallCase) -> list[str]:
        """Return what all our contenders will run, spelled out."""
        pins: list[Pin] = [None, *self._pins(case)]
        told = (self._explained(self._target.ours(pin), case) for pin in pins)
        return [pin for pin in told if "/" in pin]

    def _explained(self, ours: OurCalls, case: CallCase) -> str:
        try:
            return ours.explain(case, registered=self._task.registered)
        except Exception as e:
            return f"{type(e).__name__}"

    def _hidden(
        self, case: CallCase, found: Mapping[str, Timings], at: int
    ) -> dict[str, float]:
        """Return the share of a call that computing hides, by contender."""
        hides: dict[str, float] = {}
        if case.collective == "p2p":
            return hides
        ours = {name: self._target.ours(name) for name in found if "/" in name}
        some: dict[str, Contender] = {OURS: self._target.ours(), **ours, **self._peers}
        for name, contender in some.items():
            one = found[name]
            if one.refused or not one.us.size:
                continue
            self._trying([name], at, 60 + 10 * self._task.budget_s)
            us = float(one.batch_us.mean())
            target = self._target
            share = hidden_share(self._control, target.pools, case, contender, us)
            if share is not None:
                hides[name] = share
        return hides
