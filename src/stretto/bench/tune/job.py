"""One rank's part of tuning. Rank 0 decides; the others do as it says.

What has been decided is kept in a file as soon as it is, so that a run that was stopped
goes on where it was. The same seed and the same times give the same decisions.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from stretto.bench.arrays import Pools
from stretto.bench.cases import Case, case_of
from stretto.bench.control import Control
from stretto.bench.measure import Limits, measure
from stretto.bench.ours import Ours
from stretto.bench.run import Say
from stretto.bench.stats import Interval, ratio_interval
from stretto.bench.task import Task
from stretto.bench.tune.search import Decision, decide
from stretto.bench.tune.space import expanded, leaders, simulated_us
from stretto.runtime import (
    Choice,
    Communicator,
    Profile,
    Question,
    Selector,
    spell_size,
)

__all__ = ["work"]

_HELD_BACK = 0.15
"""The share of the time that is left for sizes that were not tuned."""
_BATCHES_HELD = 25
_WORSE = 1.03


def work(comm: Communicator, task: Task, say: Say) -> dict[str, Any]:
    """Tune all that is asked; return rank 0's decisions, nothing on the others."""
    return _Tuner(comm, task, say).run()


class _Tuner:
    """The state of a search on one rank."""

    def __init__(self, comm: Communicator, task: Task, say: Say) -> None:
        self._comm, self._task, self._say = comm, task, say
        self._control = Control(comm)
        self._until = time.monotonic() + task.budget_s
        self._state = Path(str(task.options["state"]))
        self._keep = int(task.options["keep"])
        self._memory = "zero_copy" if task.registered else "staged"
        self._cases = self._all_cases()
        self._pools = Pools(comm, task, list(self._cases.values()))
        self._untuned = Selector(task.device, Profile(executor=task.device))
        self._wrong: dict[str, str] = {}
        self._trials: list[dict[str, Any]] = []

    def _all_cases(self) -> dict[tuple[str, int], Case]:
        task = self._task
        sizes = sorted({*task.sizes, *self._between()})
        return {
            (test, n): case_of(
                test, n, task.num_ranks, dtype=task.dtype, in_place=task.in_place
            )
            for test in task.tests
            for n in sizes
        }

    def _between(self) -> list[int]:
        """Return the sizes that are held back: half-way between those that are not."""
        sizes = sorted(self._task.sizes)
        middles = [
            round((a * b) ** 0.5 / 64) * 64 for a, b in pairwise(sizes) if b >= 4 * a
        ]
        return [m for m in middles if m not in sizes and m > 0]

    def run(self) -> dict[str, Any]:
        """Decide every size of every collective, then look at those held back."""
        task = self._task
        kept = self._control.agree(self._load())
        decided: dict[str, dict[int, Decision]] = {test: {} for test in task.tests}
        todo = [(t, n) for n in sorted(task.sizes) for t in task.tests]
        tuning_until = self._until - _HELD_BACK * task.budget_s
        for at, (test, nbytes) in enumerate(todo):
            key = f"{test} {self._memory} {task.num_ranks} {task.dtype} {nbytes}"
            if key in kept:
                decided[test][nbytes] = _decision(kept[key])
                continue
            left = tuning_until - time.monotonic()
            share = self._control.agree(left / (len(todo) - at))
            if share <= 0:
                break
            found = self._decide(test, nbytes, decided[test], share)
            if found is not None:
                decided[test][nbytes] = found
                kept[key] = asdict(found)
                self._store(kept)
                self._tell(test, nbytes, found, f"[{at + 1}/{len(todo)}]")
        held = self._held_back(decided)
        if self._control.rank:
            return {}
        return {
            "decided": {
                test: {str(n): asdict(d) for n, d in sizes.items()}
                for test, sizes in decided.items()
            },
            "held_back": held,
            "wrong": self._wrong,
            "trials": self._trials,
        }

    def _decide(
        self, test: str, nbytes: int, before: Mapping[int, Decision], share_s: float
    ) -> Decision | None:
        asked = self._question(test, nbytes)
        until = time.monotonic() + share_s
        untuned = str(self._control.agree(str(self._untuned.choose(asked))))
        found: list[str] = []
        if self._control.rank == 0:  # simulating is rank 0's work; others wait
            found = [str(choice) for choice in leaders(asked, self._keep)]
            if before:
                found.insert(0, before[max(before)].pin)
        pins = self._control.agree(found)

        def is_over() -> bool:
            return bool(self._control.agree(time.monotonic() > until))

        def measured(
            some: Sequence[str], batches: int
        ) -> Mapping[str, Sequence[float]]:
            left_us = max(0.05, until - time.monotonic()) * 1e6
            return self._measure(test, nbytes, some, batches, left_us)

        def expand(some: Sequence[str]) -> Sequence[str]:
            wider = [p for pin in some for p in self._family(pin, asked)]
            agreed: list[str] = self._control.agree(wider)
            return agreed

        return decide(
            pins, untuned, measured, is_over, expand=expand, seed=self._task.seed
        )

    def _family(self, pin: str, asked: Question) -> list[str]:
        return [] if self._control.rank else expanded(pin, asked)

    def _question(self, test: str, nbytes: int) -> Question:
        case = self._cases[test, nbytes]
        return Question(
            executor=self._task.device,
            collective=case.collective,
            num_ranks=case.num_ranks,
            nbytes=nbytes,
            memory=self._memory,
            in_place=case.in_place,
            params=tuple(sorted(case.params.items())),
        )

    def _measure(
        self, test: str, nbytes: int, pins: Sequence[str], batches: int, left_us: float
    ) -> dict[str, list[float]]:
        """Return the times of the pins that gave what the oracle says."""
        task, case = self._task, self._cases[test, nbytes]
        x, out = self._pools.buffers(case)
        contenders = {
            pin: Ours(
                self._comm, pin=pin, settle=self._pools.settle, device=task.device
            )
            for pin in pins
        }
        limits = Limits(
            batch_us=task.batch_us,
            batches=batches,
            budget_us=left_us,
            capture=self._pools.capture if task.mode == "graph" else None,
        )
        found = measure(
            self._control, case, contenders, x, out, limits=limits, seed=task.seed
        )
        times: dict[str, list[float]] = {}
        for pin, one in found.items():
            if one.refused or one.wrong:
                self._wrong[f"{pin} {nbytes}"] = one.note if one.refused else one.wrong
                continue
            mine = one.us.max(axis=0).tolist() if self._control.rank == 0 else []
            times[pin] = self._control.agree(mine)
            if self._control.rank == 0:
                self._note(test, nbytes, pin, times[pin])
        return times

    def _note(self, test: str, nbytes: int, pin: str, times: Sequence[float]) -> None:
        """Keep a trial, with what the simulator had expected."""
        asked = self._question(test, nbytes)
        middle = sorted(times)[len(times) // 2]
        self._trials.append(
            {
                "test": test,
                "nbytes": nbytes,
                "pin": pin,
                "us": middle,
                "min_us": min(times),
                "batches": len(times),
                "simulated_us": simulated_us(_choice(pin, asked), asked),
            }
        )

    def _held_back(
        self, decided: dict[str, dict[int, Decision]]
    ) -> list[dict[str, Any]]:
        """Measure sizes between the tuned ones; where tuning is worse, undo it."""
        found: list[dict[str, Any]] = []
        for test, sizes in decided.items():
            for nbytes in self._between():
                below = [n for n in sizes if n <= nbytes]
                above = [n for n in sizes if n > nbytes]
                over = self._control.agree(time.monotonic() > self._until)
                if over or not below or not above:
                    continue
                middle = (max(below) * min(above)) ** 0.5
                pin = sizes[max(below) if nbytes <= middle else min(above)].pin
                asked = self._question(test, nbytes)
                plain = str(self._control.agree(str(self._untuned.choose(asked))))
                if pin == plain:
                    continue
                left_us = max(0.2, self._until - time.monotonic()) * 1e6
                times = self._measure(
                    test, nbytes, (pin, plain), _BATCHES_HELD, left_us
                )
                if len(times) < 2:
                    continue
                ratio = ratio_interval(times[plain], times[pin], seed=self._task.seed)
                row = {"test": test, "nbytes": nbytes, "pin": pin, "untuned": plain}
                found.append(row | {"ratio": ratio.ratio, "high": ratio.high})
                if ratio.low > _WORSE:
                    us = sorted(times[plain])[len(times[plain]) // 2]
                    sizes[nbytes] = Decision(
                        pin=plain, us=us, untuned=plain, untuned_us=us,
                        interval=None, tried=2,
                    )  # fmt: skip
        return found

    def _tell(self, test: str, nbytes: int, found: Decision, at: str) -> None:
        if self._control.rank == 0:
            gain = found.untuned_us / found.us if found.us else 1.0
            self._say(
                f"{at} {test} {spell_size(nbytes)}: {found.us:.3g} us, {gain:.2f}x "
                f"untuned: {found.pin}"
            )

    def _load(self) -> dict[str, Any]:
        if self._control.rank or not self._state.is_file():
            return {}
        found: dict[str, Any] = json.loads(self._state.read_text(encoding="utf-8"))
        return found

    def _store(self, kept: Mapping[str, Any]) -> None:
        if self._control.rank == 0:
            self._state.parent.mkdir(parents=True, exist_ok=True)
            fresh = self._state.with_suffix(".new")
            fresh.write_text(json.dumps(kept, indent=1), encoding="utf-8")
            fresh.replace(self._state)


def _decision(data: Mapping[str, Any]) -> Decision:
    interval = data["interval"]
    return replace(
        Decision(**{**data, "interval": None}),
        interval=Interval(**interval) if interval else None,
    )


def _choice(pin: str, asked: Question) -> Choice:
    return Selector(asked.executor, Profile(executor=asked.executor)).choose(asked, pin)
