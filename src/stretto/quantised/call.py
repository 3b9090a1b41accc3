"""A quantised sum, bound: loops and two proved exchanges, or one kernel on GPUs."""

from __future__ import annotations

from typing import Any

import numpy as np

from stretto.arrays import CPU
from stretto.errors import CallError
from stretto.executors import Call, Launch, Session
from stretto.program import collectives
from stretto.program.collectives import Shape
from stretto.quantised.elements import KINDS, STORED
from stretto.quantised.wire import DTYPES, GROUP, OPERATORS, WIRES, Parts
from stretto.runtime.calls.choosing import (
    LaunchKind,
    copies_across,
    full_size,
    prepare,
)
from stretto.runtime.calls.logs import say_quantised
from stretto.runtime.calls.requests.request import Request
from stretto.runtime.calls.runner import CallRunner
from stretto.runtime.choice.question import Question

__all__ = ["bound"]


def bound(calls: CallRunner, request: Request, session: Session) -> Launch:
    """Return what runs a sum whose data are quantised on the wire (collective)."""
    refuse(calls.rank, request)
    if not any(request.call.counts):
        return lambda x, out: None
    say_quantised(
        request.call,
        request.device,
        str(request.sums.wire),
        calls.num_ranks,
        calls.rank,
    )
    if request.device != CPU:
        from stretto.quantised.gpu import GpuSum

        return GpuSum(calls, request, session)
    return _CpuSum(calls, request, session)


def refuse(rank: int, request: Request) -> None:
    """Raise where a call cannot be quantised."""
    call, where = request.call, f"rank {rank}: all_reduce: wire={request.sums.wire!r}"
    if call.dtype not in DTYPES:
        raise CallError(f"{where} of {call.dtype}; want {', '.join(DTYPES)}")
    if call.op.value not in OPERATORS:
        raise CallError(
            f"{where} with op={call.op.value!r}; want {' or '.join(OPERATORS)}: a "
            "largest, or a product, of what is rounded has no bound"
        )
    if request.pin is not None:
        raise CallError(f"{where} with algorithm=; it has its own: want one of the two")
    if request.sums.bits is not None:
        raise CallError(
            f"{where} with bits={request.sums.bits!r}; a block's bits are its own on "
            "all ranks, whatever lies beside it: leave bits out"
        )


class _CpuSum:
    """Loops of this rank, and two exchanges of bytes."""

    def __init__(self, calls: CallRunner, request: Request, session: Session) -> None:
        from stretto.quantised import loops  # compiled when it is first needed

        self._loops, n = loops, calls.num_ranks
        call = request.call
        self._parts = parts = Parts.of(n, call.counts[0])
        self._kind, self._wire = KINDS[call.dtype], WIRES[str(request.sums.wire)]
        self._stored = STORED[call.dtype]
        self._divide = n if call.op.value == "avg" else 0
        self._mine = np.zeros(n * parts.nbytes, np.uint8)
        self._came = np.zeros(n * parts.nbytes, np.uint8)
        self._sum = np.zeros(parts.nbytes, np.uint8)
        self._block = np.zeros((2, GROUP), np.float32)
        whole = (
            f"all_reduce of {call.counts[0]} {call.dtype} op={call.op.value} "
            f"wire={request.sums.wire}"
        )
        self._to_owners, self._to_all = (
            _exchange(calls, session, name, parts.nbytes, whole)
            for name in ("all_to_all", "all_gather")
        )

    def __call__(self, x: Any, out: Any) -> None:
        """Add everybody's `x`, in `out`."""
        loops, each, block = self._loops, self._parts.each, self._block
        how = each, self._kind, self._wire, block[0]
        loops.give[self._stored](x.view(self._stored), self._mine, *how)
        self._to_owners(self._mine, self._came)
        loops.add_up(
            self._came, self._sum, each, self._wire, self._divide, block[1], block[0]
        )
        self._to_all(self._sum, self._came)
        loops.take[self._stored](self._came, out.view(self._stored), *how)


def _exchange(
    calls: CallRunner, session: Session, name: str, nbytes: int, whole: str
) -> Launch:
    """Return an exchange of so many bytes with each rank: chosen, and proved.

    It is a part of the `whole`, which all ranks call alike.
    """
    shape = Shape(num_ranks=calls.num_ranks, params={})
    call = Call(
        dtype="uint8",
        counts=(nbytes,) * collectives.get(name).num_parts(shape),
        within=whole,
    )
    asked = Question(
        executor=CPU,
        collective=name,
        num_ranks=calls.num_ranks,
        nbytes=full_size(name, call, (), calls.num_ranks),
        across=copies_across(calls, CPU),
        hosts=calls.hosts,
        seats=calls.seats,
    )
    return prepare(calls, LaunchKind(asked, call, None), session)
