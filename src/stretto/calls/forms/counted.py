"""Unequal parts with counts on the GPU: nobody on the host knows how much is moved.

The caller says how much there may be at most, the same on every rank. Launches are
known by that, so counts may change from call to call, and between replays of a graph.
An all_to_all_v has a count for every rank, an all_gather_v one for this rank's part; of
those of a reduce_scatter_v, which all ranks know, each is told everybody by its rank.
"""

from __future__ import annotations

from typing import Any

from stretto.arrays.operands import GPU, Operand, operand
from stretto.arrays.view import address
from stretto.calls.requests.request import Caller
from stretto.calls.runner import CallRunner
from stretto.choice.plans import proved_plan
from stretto.choice.select import Choice, Pin, Question, dtype_class, parse_pin
from stretto.choice.selector import Selector
from stretto.collectives import Operator, storage
from stretto.errors import CallError, PlanError
from stretto.executors import Call

__all__ = ["CountedCalls"]

PLAIN = "{0}/one_shot push packets staged blocks=16 threads=256"
"""What moves parts whole, at any size, when what is chosen does not."""
COUNTS = "all_gather/one_shot push packets staged blocks=1 threads=64"
_MOST = 1024


class Word:
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


class CountedCalls:
    """The launches of one communicator whose counts lie on the GPU."""

    def __init__(self, runner: CallRunner) -> None:
        """Start with none."""
        self._runner = runner
        self._selector = Selector(GPU, sessions=runner._sessions)
        self._launches: dict[tuple[Any, ...], Any] = {}

    def run(
        self,
        who: Caller,
        collective: str,
        x: Any,
        counts: Any,
        *,
        max_count: Any,
        out: Any,
        received: Any = None,
        algorithm: Pin,
        stream: Any,
        op: str | Operator = Operator.SUM,
    ) -> Any:
        """Enqueue, and return the output: what came, then what it held before."""
        runner, n = self._runner, self._runner.num_ranks
        max_count = who.read("max_count", max_count)
        source = who.take(x, "x")
        row = self._numbers(who, counts, "counts", 1 if _gathers(collective) else n)
        if collective == "reduce_scatter":
            row = Word(address(row) + 8 * who.rank, row)
        told = None
        if received is not None:
            told = self._numbers(who, received, "received", n)
        if out is None:
            parts = 1 if collective == "reduce_scatter" else n
            target = who.target(source, None, (parts * max_count,))
        else:
            target = who.take(out, "out", written=True)
        self._refuse(who, source, target)
        operator = who.operator(op, source)
        key = (collective, source.dtype, max_count, algorithm, operator)
        runner._ready(who.verb)
        launch = self._launches.get(key)
        if launch is None:
            if len(self._launches) >= _MOST:
                self._launches.clear()
            launch = self._prepare(who, *key)
            self._launches[key] = launch
        try:
            launch(source.flat, target.flat, stream, extra=(row, told))
        except BaseException as e:
            raise runner._broke(e) from e.__cause__
        return target.given

    def _numbers(self, who: Caller, given: Any, name: str, wanted: int) -> Any:
        """Return so many 64-bit numbers on the GPU."""
        what = f"rank {who.rank}: {who.verb}({name})"
        one = operand(given, what, written=name == "received", dtype=None)
        if one.device != GPU or one.dtype != "int64" or one.count != wanted:
            raise who.wrong(
                f"{name} is {one.count} x {one.dtype} on {one.device}; want "
                f"{wanted} x int64 on the GPU"
            )
        return one.flat

    def _refuse(self, who: Caller, source: Operand, target: Operand) -> None:
        if source.device != GPU or target.device != GPU:
            raise who.wrong(
                "counts on the GPU, and x or out on the CPU; want all there"
            )
        if source.dtype != target.dtype:
            raise who.wrong(f"out has {target.dtype}, x has {source.dtype}; want one")
        (a, a_end), (b, b_end) = source.span, target.span
        if a < b_end and b < a_end:
            raise who.wrong("out overlaps x; parts move while sizes change: want none")

    def _prepare(
        self,
        who: Caller,
        collective: str,
        dtype: str,
        most: int,
        pin: Pin,
        op: Operator,
    ) -> Any:
        runner = self._runner
        n = runner.num_ranks
        session = runner._session(GPU)
        prepare = session.prepare_counted
        parts = n * n if collective == "all_to_all" else n
        call = Call(dtype=dtype, op=op, counts=(most,) * parts)
        asked = Question(
            executor=GPU,
            collective=collective,
            num_ranks=n,
            nbytes=n * most * storage(dtype).itemsize,
            dtypes=dtype_class(dtype),
        )
        gather = self._plan(_choice(COUNTS))
        try:
            return prepare(self._plan(self._selector.choose(asked, pin)), gather, call)
        except PlanError as e:
            if pin is not None:
                raise CallError(f"{who.verb}: algorithm={pin!r}: {e}") from None
            plain = _choice(PLAIN.format(collective))
            return prepare(self._plan(plain), gather, call)

    def _plan(self, choice: Choice) -> Any:
        n = self._runner.num_ranks
        return proved_plan(choice.algorithm, n, (), choice.schedule, False)


def _gathers(collective: str) -> bool:
    return collective == "all_gather"


def _choice(pin: str) -> Choice:
    algorithm, schedule = parse_pin(pin)
    assert schedule is not None, "it is in the pin"
    return Choice(algorithm, schedule)
