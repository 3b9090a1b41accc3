"""stretto itself as a contender: each case as a call of the communicator."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from stretto.bench.workload.cases import WINDOW, Case
from stretto.bench.workload.contender import Buffer, Prepared
from stretto.bench.workload.timing import Call
from stretto.calls import Communicator, call_of
from stretto.choice import Pin
from stretto.collectives import FLOAT8

__all__ = ["Ours"]


class _Enqueued:
    """What is waited for with its stream."""

    def wait(self) -> None:
        """Return at once."""


class Ours:
    """The communicator, with what it chooses or under a pin."""

    def __init__(
        self,
        comm: Communicator,
        *,
        pin: Pin = None,
        settle: Call | None = None,
        device: str = "cpu",
    ) -> None:
        self._comm, self._pin, self._settle = comm, pin, settle
        self._device = device
        self._pair: Communicator | None = None
        self._ack = np.zeros(1, np.uint8)

    def prepare(self, case: Case, x: Buffer, out: Buffer) -> Prepared:
        """Bind a case to buffers."""
        if case.collective == "p2p":
            call = self._between(case, x, out)
        else:
            call = self._call(case, x.given, out.given)
        return Prepared(call=call, x=x, out=out, settle=self._settle)

    def start(self, case: Case, x: Buffer, out: Buffer) -> Call:
        """Return what starts the call and gives its `Work`.

        On a GPU every call only starts: it is ordered by its stream, and waited for
        with it.
        """
        if self._device == "cpu":
            return self._call(case, x.given, out.given, suffix="_async")
        call = self._call(case, x.given, out.given)

        def start() -> _Enqueued:
            call()
            return _Enqueued()

        return start

    def close(self) -> None:
        """Close the pair's communicator; the other belongs to whoever opened it."""
        if self._pair is not None:
            self._pair.close()
            self._pair = None

    def explain(self, case: Case, *, registered: bool) -> str:
        """Return the algorithm and schedule that serve a case."""
        if case.collective in ("p2p", "barrier"):
            return ""
        return self._comm.explain(
            case.collective,
            max(case.counts, default=0),
            case.dtype,
            registered=registered and not case.unequal,
            device=self._device,
            algorithm=self._pin,
            **case.params,
        )

    def _call(self, case: Case, x: Any, out: Any, suffix: str = "") -> Call:
        name = case.collective + ("_v" if case.unequal else "") + suffix
        options: dict[str, Any] = {"algorithm": self._pin, "op": case.op}
        if case.unequal:
            options["counts"] = case.counts
        if "pairs" in case.params:
            options["pairs"] = case.params["pairs"]
        if (told := _told(case, x)) is not None:
            options["dtype"] = told
        in_place = case.collective == "broadcast"
        arrays = (out, None) if in_place else (x, out)
        return call_of(self._comm, name, *arrays, root=case.root, **options)

    # Between pairs.

    def _between(self, case: Case, source: Buffer, target: Buffer) -> Call:
        comm, x, out = self._comm, source.given, target.given
        told = _told(case, x)
        if case.test == "bibw":
            if self._pair is None:
                self._pair = comm.split(0 if comm.rank < 2 else None)
            if self._pair is None:
                return _nothing
            return _swap(partial(self._pair.permute, dtype=told), x, out)
        sides = {a: (b, True) for a, b in case.pairs}
        sides |= {b: (a, False) for a, b in case.pairs}
        if comm.rank not in sides:
            return _nothing
        peer, first = sides[comm.rank]
        send = partial(comm.send, x, peer, dtype=told)
        recv = partial(comm.recv, out, peer, dtype=told)
        if case.test == "bw":
            like = source.tensor
            ack = self._ack if like is None else like.new_zeros(1)
            return self._window(send, recv, peer, ack, sends=first)
        return _one_after(send, recv) if first else _one_after(recv, send)

    def _window(
        self, each: Call, taken: Call, peer: int, ack: Any, *, sends: bool
    ) -> Call:
        """Return so many sends, or receipts, and an answer."""
        send, recv = self._comm.send, self._comm.recv

        def give() -> None:
            for _ in range(WINDOW):
                each()
            recv(ack, peer)

        def take() -> None:
            for _ in range(WINDOW):
                taken()
            send(ack, peer)

        return give if sends else take


def _nothing() -> None:
    """Take no part."""


def _told(case: Case, array: Any) -> str | None:
    """Return the element type, where an array's library has no such type."""
    lacking = case.dtype == "bfloat16" or case.dtype in FLOAT8
    return case.dtype if lacking and not hasattr(array, "data_ptr") else None


def _one_after(first: Call, then: Call) -> Call:
    def call() -> None:
        first()
        then()

    return call


def _swap(permute: Callable[..., Any], x: Any, out: Any) -> Call:
    swap = partial(permute, x, ((0, 1), (1, 0)), out=out)

    def call() -> None:
        for _ in range(WINDOW):
            swap()

    return call
