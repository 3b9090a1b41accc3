"""Which algorithm serves a call: of those that were measured, the one of least score.

What `stretto tune` keeps of its trials says how long pins took at some sizes. A policy
scores a pin for a size; every other size is searched on, those between are held out.
What is found is written as a profile as well, so the runtime's selector reads the file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stretto.compiler.plan import Schedule
from stretto.errors import CallError, ParseError, reading, why_unread
from stretto.program import algorithms, collectives
from stretto.runtime.choice import Choice, Question, dtype_class, spell_size
from stretto.search.evolve.problem import PolicyProblem, Verdict
from stretto.search.language import Form, Policy, code_of, evaluate
from stretto.search.schedules import simulated_us

__all__ = ["OFFER", "SelectorProblem"]

_FEATURES = ("bytes", "ranks", "simulated", "least", "packets", "pulls", "blocks",
             "threads")  # fmt: skip
"""Of a pin at a size: bytes of the call, ranks, what the simulator says it takes, and a
call of next to nothing; whether data announce themselves, and are pulled; and numbers
of its schedule."""
_SMALLEST = 16


class _Calls(NamedTuple):
    """Calls that are alike but for their size."""

    collective: str
    memory: str
    num_ranks: int
    dtype: str


@dataclass(frozen=True, slots=True)
class _Size:
    """What was measured at one size: features of the pins, and how long each took."""

    calls: _Calls
    nbytes: int
    rows: NDArray[np.float64]
    us: NDArray[np.float64]


class SelectorProblem(PolicyProblem):
    """Choose among pins that `stretto tune` measured, also at sizes between."""

    name: ClassVar[str] = "selector"
    rungs = ("measured",)
    form: ClassVar[Form] = Form(
        _FEATURES,
        orders=True,
        largest={"bytes": 1e9, "ranks": 16, "simulated": 1e3, "least": 10, "packets": 2,
                 "pulls": 2, "blocks": 132, "threads": 1024},
    )  # fmt: skip
    begin: ClassVar[Sequence[str]] = (
        "simulated",
        "simulated + least",
        "where(bytes > 262144, simulated, least)",
        "simulated / log(blocks)",
        "where(packets > 0, least + bytes / 100000, simulated)",
    )

    def __init__(self, trials: str, executor: str = "cuda") -> None:
        """Read the trials that `stretto tune` keeps beside its state, such as x.trials.

        `executor`: what they were measured with.
        """
        self._executor = executor
        path = Path(trials)
        self._digest, times = _read(path)
        self._pins: dict[_Calls, list[str]] = {}
        for calls, _, pin in times:
            pins = self._pins.setdefault(calls, [])
            pins += [] if pin in pins else [pin]
        sizes = sorted({(calls, nbytes) for calls, nbytes, _ in times})
        made = [self._size(calls, nbytes, times) for calls, nbytes in sizes]
        several = [one for one in made if len(one.us) > 1]
        if len(several) < 2:
            raise CallError(f"{path}: want 2 sizes or more at which 2 pins were tried")
        self._searched, self._held = several[::2], several[1::2]

    def _size(
        self, calls: _Calls, nbytes: int, times: Mapping[tuple[_Calls, int, str], float]
    ) -> _Size:
        pins = [p for p in self._pins[calls] if (calls, nbytes, p) in times]
        found = [(self._row(calls, nbytes, pin), pin) for pin in pins]
        known = [(row, times[calls, nbytes, pin]) for row, pin in found if row]
        rows = np.array([row for row, _ in known]).reshape(-1, len(_FEATURES))
        return _Size(calls, nbytes, rows, np.array([us for _, us in known]))

    def _row(self, calls: _Calls, nbytes: int, pin: str) -> list[float]:
        """Return the features of a pin at a size; none where it does not serve."""
        name, _, words = pin.partition(" ")
        how = Schedule.parse(words)
        choice = Choice(algorithms.get(name), how)
        took = []
        for size in (nbytes, _SMALLEST * calls.num_ranks):
            asked = Question(
                executor=self._executor, collective=calls.collective, nbytes=size,
                num_ranks=calls.num_ranks, memory=calls.memory,
            )  # fmt: skip
            us = simulated_us(choice, asked)
            if us is None:
                return []
            took.append(us)
        truths = (how.protocol == "packets", how.direction == "pull")
        numbers = (nbytes, calls.num_ranks, *took, *truths, how.blocks, how.threads)
        return [float(n) for n in numbers]

    @property
    def said(self) -> Mapping[str, str]:
        """Return the trials by their digest."""
        return {"trials": self._digest, "executor": self._executor}

    def judge(self, candidate: Policy, rung: int, *, fresh: int) -> Verdict:
        """Return how much longer what is chosen takes than the best, at every size."""
        return Verdict.of(self._over(candidate, self._searched))

    def _over(self, candidate: Policy, sizes: Sequence[_Size]) -> float:
        code = code_of(candidate["score"], _FEATURES)
        over = [
            one.us[evaluate(code, one.rows).argmin()] / one.us.min() for one in sizes
        ]
        return float(np.mean(over))

    def held_out(self, candidate: Policy) -> Mapping[str, float]:
        """Return the same of the sizes that nobody searched on."""
        return {"over_best": self._over(candidate, self._held)}

    def extra(self, candidate: Policy) -> Mapping[str, Any]:
        """Return a profile: for every call and power of two, the pin of least score."""
        code = code_of(candidate["score"], _FEATURES)
        measured = [*self._searched, *self._held]
        rules = []
        for calls, pins in self._pins.items():
            known = sorted(one.nbytes for one in measured if one.calls == calls)
            sizes: list[list[str]] = []
            nbytes = known[0] if known else 1
            while known and nbytes <= known[-1]:
                rows = [(self._row(calls, nbytes, pin), pin) for pin in pins]
                some = [(row, pin) for row, pin in rows if row]
                at = evaluate(code, np.array([row for row, _ in some])).argmin()
                pin = some[int(at)][1]
                if sizes and sizes[-1][1] == pin:
                    sizes.pop()
                sizes.append([spell_size(nbytes), pin])
                nbytes *= 2
            if sizes:
                reduces = collectives.get(calls.collective).reduces
                rules.append(
                    {"collective": calls.collective, "memory": calls.memory,
                     "ranks": [calls.num_ranks] * 2, "least": spell_size(known[0]),
                     "dtypes": dtype_class(calls.dtype) if reduces else "",
                     "sizes": sizes}
                )  # fmt: skip
        return {"executor": self._executor, "rule": rules}


def _read(path: Path) -> tuple[str, dict[tuple[_Calls, int, str], float]]:
    """Return the digest of trials, and the least time of every pin at every size."""
    found: dict[tuple[_Calls, int, str], float] = {}
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as e:
        raise CallError(f"{path}: {why_unread(e)}") from None
    for number, line in enumerate(text.splitlines(), 1):
        want = "a line of what `stretto tune` keeps of its trials"
        with reading(ParseError, f"{path}:{number}", want):
            trial = json.loads(line)
            memory, ranks, dtype, *_ = trial["how"].split()
            calls = _Calls(str(trial["test"]), memory, int(ranks), dtype)
            nbytes, us = int(trial["nbytes"]), float(min(trial["times"]))
            if not (
                0 < us < 1e12 and 0 < nbytes < 1 << 50 and 1 < int(ranks) < 1 << 20
            ):
                raise ValueError(f"{us} us of {nbytes} bytes for {ranks} ranks")
            pin = str(trial["pin"])
            Schedule.parse(pin.partition(" ")[2])
        key = calls, nbytes, pin
        found[key] = min(us, found.get(key, us))
    return hashlib.sha256(text.encode()).hexdigest()[:16], found


OFFER = SelectorProblem
