"""What would serve a call, and how long it would take: asked without making it."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from stretto import executors
from stretto.arrays import CPU
from stretto.errors import CallError
from stretto.executors import Call
from stretto.program import collectives
from stretto.program.collectives import Shape
from stretto.runtime.calls.choosing import (
    check_bits,
    copies_across,
    full_size,
    selector_of,
    shared_arrays,
)
from stretto.runtime.choice.bits import ANY, PROMISING, bits_in
from stretto.runtime.choice.plans import frozen, plan_of
from stretto.runtime.choice.question import (
    STAGED,
    ZERO_COPY,
    Choice,
    Question,
    dtype_class,
)
from stretto.runtime.choice.select import Pin, completed, members_of_pin


def explain(
    self: Any,
    collective: str,
    count: int,
    dtype: str = "float32",
    *,
    registered: bool = False,
    device: str = CPU,
    algorithm: Pin = None,
    bits: str | None = None,
    **params: object,
) -> str:
    """Return which algorithm and schedule would serve such a call, as a pin.

    What stands on less than a proof is said after a `#`, which a pin may have.
    """
    given = {"registered": registered, "device": device}
    given["algorithm"] = completed(algorithm, collective)
    found = _choose(self, "explain", collective, count, dtype, bits, given, params)
    module = executors.get(found.asked.executor)
    trusted = module.trusted(plan_of(found.choice, found.asked), found.call)
    notes = [f"trusted: {trusted}"] if trusted else []
    if self.hosts:
        notes.append(module.between_hosts())
    return f"{found.choice}  # {'; '.join(notes)}" if notes else str(found.choice)


def estimate(
    self: Any,
    collective: str,
    count: int,
    dtype: str = "float32",
    *,
    registered: bool = False,
    device: str = CPU,
    algorithm: Pin = None,
    **params: object,
) -> float:
    """Return how many microseconds the simulator gives such a call.

    It is the same on every rank: of the machine that choices are made for, without
    what else goes on there. What cannot be simulated is NaN.
    """
    given = {"registered": registered, "device": device}
    given["algorithm"] = completed(algorithm, collective)
    found = _choose(self, "estimate", collective, count, dtype, None, given, params)
    took = selector_of(self, found.asked.executor).expected(found.choice, found.asked)
    return took if took < math.inf else math.nan


class _Chosen(NamedTuple):
    choice: Choice
    asked: Question
    call: Call


def _choose(
    self: Any, verb: str, collective: str, count: int, dtype: str, bits: str | None,
    given: dict[str, Any], params: dict[str, Any],
) -> _Chosen:  # fmt: skip
    """Return what serves a call, by `verb`, which is asked for it."""
    if "wire" in params:
        raise CallError(
            f"rank {self.rank}: {verb}: wire={params['wire']!r:.60}; such a sum is "
            "one kernel on GPUs, and else two exchanges: ask for all_to_all and "
            "all_gather of uint8"
        )
    collective, count, dtype, registered, device, pin = self._read(
        verb, collective=collective, count=count, dtype=dtype, **given
    )
    if members := members_of_pin(pin):
        params = {**params, "members": members}
    parts = collectives.get(collective).num_parts(
        Shape(num_ranks=self.num_ranks, params=params)
    )
    frozen_params = frozen(params)
    shared = registered and shared_arrays(collective, frozen_params, self.num_ranks)
    call = Call(dtype=dtype, counts=(count,) * parts)
    asked = Question(
        executor=device,
        collective=collective,
        num_ranks=self.num_ranks,
        nbytes=full_size(collective, call, frozen_params, self.num_ranks),
        memory=ZERO_COPY if shared else STAGED,
        across=not shared and copies_across(self, device),
        params=frozen_params,
        dtypes=dtype_class(dtype),
        hosts=self.hosts,
        seats=self.seats,
        bits=_bits(self, verb, collective, bits),
    )
    choice = selector_of(self, device).choose(asked, pin)
    check_bits(choice, asked, self.rank)
    return _Chosen(choice, asked, call)


def _bits(self: Any, verb: str, collective: str, given: str | None) -> str:
    """Return what such a call's sums promise."""
    if given is not None:
        bits_in(given, f"rank {self.rank}: {verb}: bits")
    if collective not in PROMISING or given is None:
        return str(self.bits) if collective == PROMISING[0] else ANY
    return given
