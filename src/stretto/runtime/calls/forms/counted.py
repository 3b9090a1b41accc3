"""Unequal parts with counts on the GPU: nobody on the host knows how much is moved.

The caller says how much there may be at most, the same on every rank. Launches are
known by that, so counts may change from call to call, and between replays of a graph.
An all_to_all_v has a count for every rank, an all_gather_v one for this rank's part; of
those of a reduce_scatter_v, which all ranks know, each is told everybody by its rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stretto.arrays import GPU, Operand, address, operand
from stretto.errors import CallError, PlanError
from stretto.executors import Call
from stretto.program.collectives import Operator, storage
from stretto.runtime.calls.choosing import known_launch, selector_of
from stretto.runtime.calls.requests.request import Caller
from stretto.runtime.calls.requests.verb import Verb
from stretto.runtime.calls.runner import CallRunner
from stretto.runtime.choice.plans import plan_of
from stretto.runtime.choice.question import Choice, Question, dtype_class
from stretto.runtime.choice.select import Pin, completed, parse_pin

PLAIN = "{0}/one_shot push packets staged blocks=16 threads=256"
"""What moves parts whole, at any size, when what is chosen does not."""
COUNTS = "all_gather/one_shot push packets staged blocks=1 threads=64"


class DeviceNumber:
    """One number of an array on the GPU, which it keeps."""

    def __init__(self, at: int, kept: Any) -> None:
        """Stand for the number at an address."""
        self._at, self._kept = at, kept

    def data_ptr(self) -> int:
        """Return the address."""
        return self._at

    def is_contiguous(self) -> bool:
        """Return that it is one run of elements."""
        return True


def call_counted(calls: CallRunner, verb: Verb, values: Sequence[Any]) -> Any:
    """Enqueue, and return the output: what came, then what it held before."""
    given = dict(zip(verb.parameters, values, strict=True))
    collective, n = verb.collective, calls.num_ranks
    pin = completed(given["algorithm"], collective)
    who = calls._caller(verb.name, given["dtype"])
    max_count = who.read("max_count", given["max_count"])
    source = who.take(given["x"], "x")
    wanted = 1 if collective == "all_gather" else n
    row = _numbers(who, given["counts"], "counts", wanted)
    if collective == "reduce_scatter":
        row = DeviceNumber(address(row) + 8 * who.rank, row)
    told, out = given.get("received"), given["out"]
    if told is not None:
        told = _numbers(who, told, "received", n)
    if out is None:
        parts = 1 if collective == "reduce_scatter" else n
        target = who.target(source, None, (parts * max_count,))
    else:
        target = who.take(out, "out", written=True)
    _refuse(who, source, target)
    op = who.operator(given.get("op", Operator.SUM), source)
    calls._ready(who.verb)
    call = Call(
        dtype=source.dtype,
        op=op,
        counts=(max_count,) * (n * n if collective == "all_to_all" else n),
    )
    launch = known_launch(
        calls,
        ("counted", collective, call, pin),
        lambda: _prepare(calls, who, collective, call, pin),
    )
    try:
        launch(source.flat, target.flat, given["stream"], extra=(row, told))
    except BaseException as e:
        raise calls._broke(e) from e.__cause__
    return target.given


def _numbers(who: Caller, given: Any, name: str, wanted: int) -> Any:
    """Return so many 64-bit numbers on the GPU."""
    what = f"rank {who.rank}: {who.verb}({name})"
    one = operand(given, what, written=name == "received", dtype=None)
    if one.device != GPU or one.dtype != "int64" or one.count != wanted:
        raise who.wrong(
            f"{name} is {one.count} x {one.dtype} on {one.device}; want "
            f"{wanted} x int64 on the GPU"
        )
    return one.flat


def _refuse(who: Caller, source: Operand, target: Operand) -> None:
    if source.device != GPU or target.device != GPU:
        raise who.wrong("counts on the GPU, and x or out on the CPU; want all there")
    if source.dtype != target.dtype:
        raise who.wrong(f"out has {target.dtype}, x has {source.dtype}; want one")
    (a, a_end), (b, b_end) = source.span, target.span
    if a < b_end and b < a_end:
        raise who.wrong("out overlaps x; parts move while sizes change: want none")


def _prepare(
    calls: CallRunner, who: Caller, collective: str, call: Call, pin: Pin
) -> Any:
    """Choose what moves parts of any size up to those of `call`, and bind it."""
    asked = Question(
        executor=GPU,
        collective=collective,
        num_ranks=calls.num_ranks,
        nbytes=calls.num_ranks * call.counts[0] * storage(call.dtype).itemsize,
        in_place=False,
        dtypes=dtype_class(call.dtype),
        seats=calls.seats,
    )
    prepare = calls._session(GPU).prepare_counted
    gather = plan_of(_choice(COUNTS), asked)
    try:
        choice = selector_of(calls, GPU).choose(asked, pin)
        return prepare(plan_of(choice, asked), gather, call)
    except PlanError as e:
        if pin is not None:
            raise CallError(f"{who.verb}: algorithm={pin!r}: {e}") from None
        plain = _choice(PLAIN.format(collective))
        return prepare(plan_of(plain, asked), gather, call)


def _choice(pin: str) -> Choice:
    algorithm, schedule = parse_pin(pin)
    assert schedule is not None, "it is in the pin"
    return Choice(algorithm, schedule)
