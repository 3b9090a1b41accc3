"""Streams without number: more than a communicator has flags for, in random order."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from stage import Stage, stage

STREAMS = 50
CALLS = 240
COUNTS = (1, 1000, 70001)
KEPT: list[Any] = []
"""What torch must not give to a new stream that has the handle of a destroyed one."""
SLOW = 200_000
"""GPU cycles that a stream may take before a call: ranks and streams drift apart."""


class Streams:
    """Streams of this process, some of which end while their work is under way."""

    def __init__(self, s: Stage) -> None:
        from stretto.executors.cuda.device.driver import ask

        self._ask, self._torch = ask, s.torch
        self._handles = [int(ask("cuStreamCreate", 1)) for _ in range(STREAMS)]

    def pick(self, drawn: random.Random) -> Any:
        """Return one of them, as torch has it."""
        return self._torch.cuda.ExternalStream(drawn.choice(self._handles))

    def replace(self, drawn: random.Random) -> None:
        """Destroy one that shares its flags, and create another."""
        from stretto.executors.cuda.device.driver import api

        at = drawn.randrange(10, STREAMS)  # the first were used first
        self._ask("cuStreamDestroy", api().CUstream(self._handles[at]))
        self._handles[at] = int(self._ask("cuStreamCreate", 1))

    def touch(self, call: Callable[[Any], None]) -> None:
        """Use the first ten in their order: these are never destroyed."""
        for handle in self._handles[:10]:
            call(self._torch.cuda.ExternalStream(handle))


def reduced(s: Stage, turn: int, count: int) -> tuple[Any, float]:
    """Enqueue an all_reduce on the current stream; return its array and the sum."""
    x = s.torch.empty(count, device="cuda")
    x.fill_(s.rank + turn)
    s.comm.all_reduce(x)
    return x, float(sum(q + turn for q in range(s.n)))


def gathered(s: Stage, turn: int, count: int) -> tuple[Any, float]:
    """The same of an all_gather; ranks' parts are alike but for their rank."""
    x = s.torch.empty(count, device="cuda")
    x.fill_(turn)
    out = s.torch.empty(s.n * count, device="cuda")
    s.comm.all_gather(x, out=out)
    KEPT.append(x)
    return out, float(turn)


def started(s: Stage, turn: int, count: int) -> tuple[Any, float]:
    """The same of a call that is started, and waited for on its stream."""
    x = s.torch.empty(count, device="cuda")
    x.fill_(s.rank * turn)
    s.comm.all_reduce_async(x, op="max").wait()
    return x, float((s.n - 1) * turn)


KINDS = (reduced, gathered, started)


def by_engine(s: Stage, room: tuple[Any, Any], turn: int) -> tuple[Any, float]:
    """The same of copy engines, whose flags are of the set too; memory is not ours."""
    x, out = room
    x.fill_(turn)
    pin = "all_gather/one_shot push engine zero_copy"
    s.comm.all_gather(x, out=out, algorithm=pin)
    return out.clone(), float(turn)


@stage
def many_streams(s: Stage) -> None:
    """Fifty streams in random order, some destroyed with their work under way."""
    if s.device == "cpu":
        return
    torch, alike, own = s.torch, random.Random(7), random.Random(100 + s.rank)
    streams = Streams(s)
    sizes = 4096, 4096 * s.n
    one, every = (s.comm.empty(n, "float32", device="cuda") for n in sizes)
    room = torch.from_dlpack(one), torch.from_dlpack(every)
    for count in COUNTS:
        for kind in KINDS:
            kind(s, 1, count)
    by_engine(s, room, 1)
    s.sync()
    streams.touch(lambda on: s.comm.all_reduce(s.full(8, 1), stream=on))
    s.sync()
    due: list[tuple[Any, float, str]] = []
    engine_done = torch.cuda.Event()
    engine_done.record()
    for turn in range(CALLS):
        on, count = streams.pick(alike), alike.choice(COUNTS)
        with torch.cuda.stream(on):
            if own.random() < 0.5:
                torch.cuda._sleep(own.randrange(SLOW))
            if turn % 8 == 7:  # one pair of arrays: its uses follow one another
                engine_done.wait()
                found = by_engine(s, room, turn)
                engine_done.record()
                due.append((*found, f"engine, call {turn}"))
            else:
                kind = alike.choice(KINDS)
                due.append((*kind(s, turn, count), f"{kind.__name__}, call {turn}"))
        if turn % 6 == 5:
            streams.replace(alike)
    s.sync()
    for got, want, text in due:
        s.expect(bool((got == want).all()), f"{text}: {got[:2]}, want {want}")


@stage
def many_graphs(s: Stage) -> None:
    """Graphs of many streams, replayed in turn beside calls on many streams."""
    if s.device == "cpu":
        return
    torch, alike, own = s.torch, random.Random(8), random.Random(200 + s.rank)
    streams, graphs = Streams(s), []
    for count in COUNTS:
        for kind in KINDS:
            kind(s, 1, count)
    streams.touch(lambda on: s.comm.all_reduce(s.full(8, 1), stream=on))
    s.sync()
    for nth in range(6):
        x, side_x = s.full(COUNTS[1] + nth, 0), s.full(COUNTS[1], 0)
        for array in (x, side_x):
            s.comm.all_reduce(array)
        s.comm.all_reduce(x, op="max")
        s.sync()
        on, side = torch.cuda.Stream(), torch.cuda.Stream()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=on):
            side.wait_stream(on)
            s.comm.all_reduce(x)
            with torch.cuda.stream(side):  # both have the flags of graphs
                s.comm.all_reduce(side_x)
            s.comm.all_reduce(x, op="max")
            on.wait_stream(side)
        graphs.append((graph, x, side_x))
    player = torch.cuda.Stream()
    due: list[tuple[Any, float, str]] = []
    for turn in range(60):
        with torch.cuda.stream(player):  # in turn: all on one stream
            graph, x, side_x = alike.choice(graphs)
            if own.random() < 0.5:
                torch.cuda._sleep(own.randrange(SLOW))
            x.fill_(s.rank + turn)
            side_x.fill_(turn)
            graph.replay()
            due.append((x.clone(), float(sum(q + turn for q in range(s.n))), "graph"))
            due.append((side_x.clone(), float(s.n * turn), "graph's side"))
        for _ in range(2):
            with torch.cuda.stream(streams.pick(alike)):
                kind = alike.choice(KINDS)
                due.append((*kind(s, turn, alike.choice(COUNTS)), kind.__name__))
    s.sync()
    for i, (got, want, text) in enumerate(due):
        s.expect(bool((got == want).all()), f"{text} {i}: {got[:2]}, want {want}")
