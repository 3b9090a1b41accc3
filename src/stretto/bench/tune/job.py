"""One rank's part of tuning: the searches of all sizes take turns.

All ranks are told the same times, so all run the same searches; only the clock is rank
0's. While a size is measured, the kernels that others ask for next are compiled. What
hangs or faults is noted, and the communicator made anew; what ends a process is found
in the file of what was being tried (`memory`), when the ranks are started again, and
what was measured before is not measured again.
"""

from __future__ import annotations

import faulthandler
import math
import time
from collections.abc import Sequence
from dataclasses import asdict
from itertools import pairwise
from typing import Any

from stretto import topology
from stretto.arrays import CPU
from stretto.bench.measuring.control import Control
from stretto.bench.measuring.loop import Limits
from stretto.bench.measuring.precompile import Precompiler
from stretto.bench.measuring.target import Target
from stretto.bench.ranks.run import Say
from stretto.bench.tune.memory import SearchMemory, decision_of
from stretto.bench.workload.cases import CallCase, case_of
from stretto.bench.workload.task import BenchTask
from stretto.runtime.calls import Communicator
from stretto.runtime.calls.choosing import copies_across
from stretto.runtime.choice import Profile, Question, Selector, dtype_class, spell_size
from stretto.search.halving import (
    Decision,
    Search,
    SearchSpace,
    TrialRequest,
    search,
)
from stretto.search.noise import ratio_interval
from stretto.search.schedules import expanded, leaders, refined, simulated_us

_SEARCHING, _CONFIRMING = 0.7, 0.9
"""The shares of the time until which is searched, and confirmed; the rest is for the
sizes that are held back."""
_SILENT_S, _DEADLINES = 30.0, 3.0
"""A rank that hangs so long, and so many deadlines, where none reaches ends itself."""

_BETWEEN = 25
"""Batches of a size that was held back."""
Key = tuple[str, int]
"""A collective and a size."""


def work(comm: Communicator, task: BenchTask, say: Say) -> dict[str, Any]:
    """Tune all that is asked; return rank 0's decisions, nothing on the others."""
    return Tuner(comm, task, say).run()


class Tuner:
    """The state of the searches on one rank."""

    def __init__(self, comm: Communicator, task: BenchTask, say: Say) -> None:
        self.task, self._say = task, say
        self.control = Control(comm)
        self._began = self._begin()
        self._memory = SearchMemory(task, self.control)
        self._cases = {
            (test, n): case_of(
                test, n, task.num_ranks, dtype=task.dtype, in_place=task.in_place
            )
            for test in task.tests
            for n in sorted({*task.sizes, *self.between()})
        }
        self._deadline_s = float(task.options.get("deadline_s", 60.0))
        self._target = Target(
            comm, self.control, task, list(self._cases.values()),
            deadline_s=self._deadline_s,
        )  # fmt: skip
        self._precompiler = Precompiler(
            comm.rank, comm.num_ranks,
            dtype=task.dtype, op=task.op, arch=self._target.pools.arch,
        )  # fmt: skip
        here = self.control.gather(topology.here(CPU))[0]  # alike, as calls have it
        shipped = Profile.shipped(task.device, here if task.device == CPU else "")
        untuned = Profile(executor=task.device)
        self._selector = Selector(task.device, untuned, shipped=shipped)
        self._across = copies_across(comm, task.device)
        self._leading: dict[Key, tuple[str, ...]] = {}
        """The pins that a size asked for last: its neighbours try them, too."""
        self._simulated: dict[tuple[str, Question], float | None] = {}
        self._is_over = False

    def _begin(self) -> float:
        """Return when the time began: with the starting of ranks, on this host."""
        now = time.monotonic()
        told = self.task.options.get("began")
        ours = told is not None and 0 <= now - float(told) < self.task.budget_s
        return float(told) if ours else now  # type: ignore[arg-type]

    def between(self) -> list[int]:
        """Return the sizes that are held back: half-way between those that are not."""
        sizes = sorted(self.task.sizes)
        middles = [
            round((a * b) ** 0.5 / 64) * 64 for a, b in pairwise(sizes) if b >= 4 * a
        ]
        return [m for m in middles if m not in sizes and m > 0]

    def left_s(self, share: float = 1.0) -> float:
        """Return the seconds that are left of a share of the time."""
        return self._began + share * self.task.budget_s - time.monotonic()

    def run(self) -> dict[str, Any]:
        """Decide every size of every collective, then look at those held back."""
        task = self.task
        decided: dict[str, dict[int, Decision]] = {test: {} for test in task.tests}
        todo = []
        for key in ((t, n) for n in sorted(task.sizes) for t in task.tests):
            kept = self._memory.decided(*key)
            if kept is not None:
                decided[key[0]][key[1]] = decision_of(kept)
            else:
                todo.append(key)
        for key, found in self._searched(todo):
            decided[key[0]][key[1]] = found
        held = self._held_back(decided)
        self._precompiler.close()
        self._target.close()
        if self.control.rank:
            return {}
        return {
            "decided": {
                test: {str(n): asdict(d) for n, d in sizes.items()}
                for test, sizes in decided.items()
            },
            "held_back": held,
            "wrong": self._memory.failed,
            "trials": [
                {k: v for k, v in trial.items() if k not in ("times", "how")}
                for trial in self._memory.trials
            ],
            "seconds": time.monotonic() - self._began,
            "rebuilt": self._target.rebuilt,
        }

    def _held_back(
        self, decided: dict[str, dict[int, Decision]]
    ) -> list[dict[str, Any]]:
        """Look at sizes that were not tuned, and return what was seen (collective).

        Where the neighbour's choice is worse there than what would have been used
        untuned, the size gets the latter: tuning must not make anything worse beyond
        noise.
        """
        found: list[dict[str, Any]] = []
        for test, sizes in decided.items():
            for nbytes in self.between():
                key = (test, nbytes)
                self._precompiler.start([self.plain(key)], self._cases[key])
            for nbytes in self.between():
                key = (test, nbytes)
                below = [n for n in sizes if n <= nbytes]
                above = [n for n in sizes if n > nbytes]
                over = self.control.agree(self.left_s() <= 0)
                if over or not below or not above:
                    continue
                middle = (max(below) * min(above)) ** 0.5
                pin = sizes[max(below) if nbytes <= middle else min(above)].pin
                plain = self.plain(key)
                if pin == plain:
                    continue
                times = self.measure(
                    key, TrialRequest(pins=(pin, plain), batches=_BETWEEN)
                )
                if len(times) < 2:
                    continue
                ratio = ratio_interval(times[plain], times[pin], seed=self.task.seed)
                row = {"test": test, "nbytes": nbytes, "pin": pin, "untuned": plain}
                found.append(row | {"ratio": ratio.ratio, "high": ratio.high})
                if ratio.low > 1:
                    us = sorted(times[plain])[len(times[plain]) // 2]
                    sizes[nbytes] = Decision(
                        pin=plain, us=us, untuned=plain, untuned_us=us,
                        interval=None, tried=2,
                    )  # fmt: skip
        return found

    # The searches.

    def _searched(self, todo: Sequence[Key]) -> list[tuple[Key, Decision]]:
        """Run all searches, each a step in its turn; return what they decide."""
        spaces = self._spaces(todo)
        searches: dict[Key, Search] = {}
        asks: dict[Key, TrialRequest] = {}
        for key in todo:
            one = search(spaces[key], lambda: self._is_over, seed=self.task.seed)
            searches[key], asks[key] = one, next(one)
            self._asked(key, asks[key])
        for key in todo:  # they are measured in any case
            sure = (spaces[key].untuned, spaces[key].shipped)
            self._precompiler.start([pin for pin in sure if pin], self._cases[key])
        found: list[tuple[Key, Decision]] = []
        while asks:
            for key in list(asks):
                ask = asks.pop(key)
                left_s = self.left_s(_SEARCHING)
                self._is_over = bool(self.control.agree(left_s <= 0))
                skipped = self._is_over and not ask.is_last
                times = {} if skipped else self.measure(key, ask)
                try:
                    asks[key] = searches[key].send(times)
                except StopIteration as e:
                    if e.value is not None:
                        found.append((key, e.value))
                        self._decided(key, e.value, f"[{len(found)}/{len(todo)}]")
                else:
                    self._asked(key, asks[key])
        return found

    def _asked(self, key: Key, ask: TrialRequest) -> None:
        """Compile what a search asks for while others have their turn."""
        self._leading[key] = ask.pins
        self._precompiler.start(ask.pins, self._cases[key])

    def _spaces(self, todo: Sequence[Key]) -> dict[Key, SearchSpace]:
        """Return what each search may try; ranks share the simulating."""
        control, keep = self.control, int(self.task.options["keep"])
        scratch = bool(self.task.options.get("scratch"))
        mine: dict[str, list[str]] = {}
        for at, key in enumerate(todo):
            if at % control.num_ranks == control.rank:
                some = leaders(self.question(key), keep)
                mine[f"{key[0]} {key[1]}"] = [str(choice) for choice in some]
        pins: dict[str, list[str]] = {}
        for theirs in control.gather(mine):
            pins |= theirs
        spaces = {}
        for key in todo:
            asked, own = self.question(key), pins[f"{key[0]} {key[1]}"]
            shipped = str(self._selector.choose(asked))
            from_scratch = scratch and own
            spaces[key] = SearchSpace(
                pins=own,
                untuned=own[0] if from_scratch else shipped,
                shipped=shipped if from_scratch else "",
                expand=lambda some, a=asked: [
                    p for pin in some for p in expanded(pin, a)
                ],  # type: ignore[misc]
                refine=lambda some, k=key: self._refined(some, k),  # type: ignore[misc]
            )
        return spaces

    def _refined(self, some: Sequence[str], key: Key) -> list[str]:
        """Return the neighbours of pins, and what the sizes beside this one like."""
        test, nbytes = key
        asked = self.question(key)
        sizes = sorted({nbytes, *(n for t, n in self._leading if t == test)})
        at = sizes.index(nbytes)
        beside: list[str] = []
        for n in sizes[max(0, at - 1) : at + 2]:
            leading = self._leading.get((test, n), ())
            if n != nbytes and len(leading) <= 8:  # few are left: it has searched
                beside += leading[:3]
        works = [p for p in beside if self._foreseen(p, asked) is not None]
        return [*refined(some, asked), *works]

    # Measuring.

    def question(self, key: Key) -> Question:
        """Return what the runtime would ask for such a call."""
        case = self._cases[key]
        return Question(
            executor=self.task.device,
            collective=case.collective,
            num_ranks=case.num_ranks,
            nbytes=case.nbytes,
            memory="zero_copy" if self.task.registered else "staged",
            across=not self.task.registered and self._across,
            in_place=case.in_place,
            params=tuple(sorted(case.params.items())),
            dtypes=dtype_class(case.dtype),
        )

    def plain(self, key: Key) -> str:
        """Return what would serve a size untuned."""
        return str(self._selector.choose(self.question(key)))

    def measure(self, key: Key, ask: TrialRequest) -> dict[str, list[float]]:
        """Return the times of the pins that gave what the oracle says."""
        case, memory = self._cases[key], self._memory
        times: dict[str, list[float]] = {}
        if not ask.is_last:  # what decides is measured anew, side by side
            times = memory.recalled(ask.pins, case, ask.batches)
        left = [pin for pin in ask.pins if pin not in times]
        left = self._compiled(
            [p for p in left if not memory.has_failed(p, case)], ask, case
        )
        while left := [p for p in left if not memory.has_failed(p, case)]:
            group = memory.together(left, case)
            found = self._measured(group, case, ask.batches)
            alike = ask.is_last and len(group) < len(left)  # then all of them anew
            left = [p for p in left if p not in group or (alike and p in found)]
            memory.worked(found, case)
            if self.control.rank == 0:
                asked = self.question(key)
                memory.note(self._trial(case, asked, *one) for one in found.items())
            times |= found
        return times

    def _compiled(
        self, pins: Sequence[str], ask: TrialRequest, case: CallCase
    ) -> list[str]:
        """Return the pins that all ranks have compiled: all, or while there is time."""
        at_most_s = math.inf if ask.is_last else max(0.0, self.left_s(_SEARCHING))
        ready = self._precompiler.wait(pins, case, at_most_s=at_most_s)
        told = self.control.gather(ready)
        return [pin for pin in pins if all(pin in some for some in told)]

    def _measured(
        self, pins: Sequence[str], case: CallCase, batches: int
    ) -> dict[str, list[float]]:
        task, memory = self.task, self._memory
        silent_s = _SILENT_S + _DEADLINES * self._deadline_s

        def trying(some: Sequence[str]) -> None:
            faulthandler.dump_traceback_later(silent_s, exit=True)
            memory.try_(some, case)

        limits = Limits(
            batch_us=task.batch_us,
            batches=batches,
            budget_us=max(0.05, self.left_s(_CONFIRMING)) * 1e6,
            fewest=min(5, batches),
            trying=trying,
        )
        found = self._target.measure(
            case, {pin: pin for pin in pins}, {}, limits=limits, seed=task.seed
        )
        faulthandler.cancel_dump_traceback_later()
        memory.tried()
        for pin, one in found.items():
            if one.refused or one.wrong:
                memory.fail(pin, case, one.note if one.refused else one.wrong)
        return {
            pin: one.batch_us.tolist()
            for pin, one in found.items()
            if not one.refused and not one.wrong
        }

    def _foreseen(self, pin: str, asked: Question) -> float | None:
        """Return the simulated time, found once."""
        key = (pin, asked)
        if key not in self._simulated:
            choice = self._selector.choose(asked, pin)
            self._simulated[key] = simulated_us(choice, asked)
        return self._simulated[key]

    def _trial(
        self, case: CallCase, asked: Question, pin: str, times: Sequence[float]
    ) -> dict[str, Any]:
        """Return what a trial tells, with what the simulator had expected."""
        return {
            "test": case.test,
            "nbytes": case.nbytes,
            "pin": pin,
            "us": sorted(times)[len(times) // 2],
            "min_us": min(times),
            "batches": len(times),
            "simulated_us": self._foreseen(pin, asked),
            "times": times,
        }

    def _decided(self, key: Key, found: Decision, at: str) -> None:
        self._memory.decide(*key, found)
        if self.control.rank == 0:
            said = f"{at} {key[0]} {spell_size(key[1])}: {found.us:.3g} us"
            gain = found.untuned_us / found.us
            said += f", {gain:.2f}x untuned" if math.isfinite(gain) else ""
            if math.isfinite(found.shipped_us):
                said += f"; shipped {found.shipped_us:.3g} us"
            if found.found:
                said += f", kept: the search found {found.found_us:.3g} us"
            self._say(f"{said}: {found.pin}")
