"""stretto itself: each case as a call of the communicator, or of the engine."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from stretto.bench.contender import CallBuffer, Contender, PreparedCall
from stretto.bench.peers._side import MovingSide
from stretto.bench.timing import Call, in_turn
from stretto.bench.workload.cases import WINDOW, CallCase
from stretto.bench.workload.moves import MoveCase
from stretto.fabric import hop as hops
from stretto.program.collectives import FLOAT8
from stretto.runtime.calls import Communicator, call_of
from stretto.runtime.choice import Pin
from stretto.transfer import Engine, Layout

_HOPS = {"ucx-tcp": "ucx", "nixl-tcp": "nixl"}
_SECRET = b"measure" * 5


class _Enqueued:
    """What is waited for with its stream."""

    def wait(self) -> None:
        """Return at once."""


class OurCalls(Contender):
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

    def prepare(self, case: CallCase, x: CallBuffer, out: CallBuffer) -> PreparedCall:
        """Bind a case to buffers."""
        if case.collective == "p2p":
            call = self._between(case, x, out)
        else:
            call = self._call(case, x.given, out.given)
        return PreparedCall(call=call, x=x, out=out, settle=self._settle)

    def start(self, case: CallCase, x: CallBuffer, out: CallBuffer) -> Call:
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

    def explain(self, case: CallCase, *, registered: bool) -> str:
        """Return the algorithm and schedule that serve a case."""
        if case.collective in ("p2p", "barrier"):
            return ""
        params: dict[str, Any] = dict(case.params)
        return self._comm.explain(
            case.collective,
            max(case.counts, default=0),
            case.dtype,
            registered=registered and not case.unequal,
            device=self._device,
            algorithm=self._pin,
            **params,
        )

    def _call(self, case: CallCase, x: Any, out: Any, suffix: str = "") -> Call:
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

    def _between(self, case: CallCase, source: CallBuffer, target: CallBuffer) -> Call:
        comm, x, out = self._comm, source.given, target.given
        told = _told(case, x)
        if case.test == "bibw":
            if self._pair is None:
                self._pair = comm.split(0 if comm.rank < 2 else None)
            if self._pair is None:
                return _nothing
            return _swap(partial(self._pair.permute, dtype=told), x, out)
        side = case.side(comm.rank)
        if side is None:
            return _nothing
        peer, first = side
        send = partial(comm.send, x, peer, dtype=told)
        recv = partial(comm.recv, out, peer, dtype=told)
        if case.test == "bw":
            like = source.tensor
            ack = self._ack if like is None else like.new_zeros(1)
            return self._window(send, recv, peer, ack, sends=first)
        return in_turn(send, recv) if first else in_turn(recv, send)

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


def _told(case: CallCase, array: Any) -> str | None:
    """Return the element type, where an array's library has no such type."""
    lacking = case.dtype == "bfloat16" or case.dtype in FLOAT8
    return case.dtype if lacking and not hasattr(array, "data_ptr") else None


def _swap(permute: Callable[..., Any], x: Any, out: Any) -> Call:
    swap = partial(permute, x, ((0, 1), (1, 0)), out=out)

    def call() -> None:
        for _ in range(WINDOW):
            swap()

    return call


class OurSide(MovingSide):
    """An engine, and a region that takes all of its memory."""

    PATHS = ("shared", "cross-memory", "tcp", "ucx-tcp", "nixl-tcp")

    @classmethod
    def environment(cls, path: str = "") -> Mapping[str, str]:
        """Return what must be set."""
        return {"UCX_TLS": "tcp,self"} if path in _HOPS else {}

    def __init__(self, role: str, path: str, nbytes: int) -> None:
        super().__init__(role, path, nbytes)
        self._is_far = path.endswith("tcp")
        self._hop = _HOPS.get(path, "tcp")
        if self._hop != "tcp":
            hops.get(self._hop)

    def about(self) -> Mapping[str, Any]:
        """Return a name, or an address."""
        attends = self._is_far and self.role == "there"
        listens = "127.0.0.1:0" if attends else None
        self._engine = Engine(
            f"{self.role}-{os.getpid()}", job="contest", secret=_SECRET, hop=self._hop,
            listen=listens,
        )  # fmt: skip
        if self.path == "shared":
            self.memory = self._engine.arena(len(self.memory))
        self._region = self._engine.share(self.memory, "memory")
        return {"name": self._engine.name, "address": self._engine.address}

    def meet(self, said: Mapping[str, Any]) -> None:
        """Connect from here."""
        if self.role == "here":
            where = said["address"] if self._is_far else said["name"]
            self._peer = self._engine.connect(where).wait(60)
        else:
            self._peer = self._engine.peer(said["name"]).wait(60)
        self._theirs = self._peer.region("memory").wait(60)

    def prepare(self, case: MoveCase) -> Callable[[], None]:
        """Return a prepared put or get, or a round trip."""
        if case.what == "notify":
            pong, notify = self._engine.notified(b"pong"), self._peer.notify

            def trip() -> None:
                notify(b"ping")
                pong.wait(30)

            return trip
        n = case.total
        if case.what == "blocks":
            layout = Layout(f"B={case.count} X={case.nbytes} uint8")
            ours, theirs = self._paged(layout), f"pages-{case.count}-{case.nbytes}"
            there = self._peer.region(theirs).wait(30)
            every = np.arange(case.count)
            put: Callable[[], None] = there[case.order].prepare_put(ours[every])
            return put
        view = self._theirs[:n]
        prepare = view.prepare_put if case.what == "put" else view.prepare_get
        made: Callable[[], None] = prepare(self._region[:n])
        return made

    def _paged(self, layout: Layout) -> Any:
        name = f"pages-{layout.axis('B').size}-{layout.axis('X').size}"
        if not hasattr(self, name):
            memory = self.memory[: layout.part_bytes]
            setattr(self, name, self._engine.share(memory, name, layout))
        return getattr(self, name)

    def attend(self, case: MoveCase, rounds: int, is_over: Callable[[], bool]) -> None:
        """Answer notifications, or see to what comes."""
        if case.what == "blocks":
            self._paged(Layout(f"B={case.count} X={case.nbytes} uint8"))
        if case.what == "notify":
            ping = self._engine.notified(b"ping")
            for _ in range(rounds):
                ping.wait(30)
                self._peer.notify(b"pong")
            return
        self._engine.notified(b"over").wait(120)

    def over(self) -> None:
        """Let the other side stop attending."""
        self._peer.notify(b"over")


OFFERS = (OurCalls, OurSide)
