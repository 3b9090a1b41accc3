"""What would serve a call, asked without making it."""

from __future__ import annotations

from typing import Any

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
from stretto.runtime.choice.question import STAGED, ZERO_COPY, Question, dtype_class
from stretto.runtime.choice.select import Pin, members_of_pin


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
    if "wire" in params:
        raise CallError(
            f"rank {self.rank}: explain: wire={params['wire']!r:.60}; such a sum is "
            "one kernel on GPUs, and else two exchanges: ask for all_to_all and "
            "all_gather of uint8"
        )
    collective, count, dtype, registered, device, pin = self._read(
        "explain",
        collective=collective,
        count=count,
        dtype=dtype,
        registered=registered,
        device=device,
        algorithm=algorithm,
    )
    if members := members_of_pin(pin):
        params = {**params, "members": members}
    parts = collectives.get(collective).num_parts(
        Shape(num_ranks=self.num_ranks, params=params)
    )
    given = frozen(params)
    shared = registered and shared_arrays(collective, given, self.num_ranks)
    call = Call(dtype=dtype, counts=(count,) * parts)
    asked = Question(
        executor=device,
        collective=collective,
        num_ranks=self.num_ranks,
        nbytes=full_size(collective, call, given, self.num_ranks),
        memory=ZERO_COPY if shared else STAGED,
        across=not shared and copies_across(self, device),
        params=given,
        dtypes=dtype_class(dtype),
        hosts=self.hosts,
        seats=self.seats,
        bits=_bits(self, collective, bits),
    )
    choice = selector_of(self, device).choose(asked, pin)
    check_bits(choice, asked, self.rank)
    module = executors.get(device)
    trusted = module.trusted(plan_of(choice, asked), call)
    notes = [f"trusted: {trusted}"] if trusted else []
    if self.hosts:
        notes.append(module.between_hosts())
    return f"{choice}  # {'; '.join(notes)}" if notes else str(choice)


def _bits(self: Any, collective: str, given: str | None) -> str:
    """Return what such a call's sums promise."""
    if given is not None:
        bits_in(given, f"rank {self.rank}: explain: bits")
    if collective not in PROMISING or given is None:
        return str(self.bits) if collective == PROMISING[0] else ANY
    return given
