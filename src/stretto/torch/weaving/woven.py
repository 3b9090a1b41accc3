"""Do what a weave says: steps on streams, in memory that peers reach."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stretto.compiler.weaves import MEETS, PartsBox, Weave, WeaveStep, placed, prove
from stretto.errors import CallError
from stretto.runtime.calls import Communicator
from stretto.torch.weaving.loads import WovenLoad
from stretto.torch.weaving.memory import WovenMemory

__all__ = ["Woven"]


def _cuts(rows: int, parts: int) -> list[int]:
    """Return where parts of so many rows begin, and where the last ends.

    Parts are as large as can be; in whole tiles of a matmul, where they have some.
    """
    tile = 64 if rows >= 128 * parts and rows % parts else 1
    return [min(rows, -(-rows * p // (parts * tile)) * tile) for p in range(parts + 1)]


class _Act(NamedTuple):
    """A step, ready to be done."""

    stream: Any
    waits: tuple[Any, ...]
    """Events of steps on other streams."""
    does: Callable[[], None]
    event: Any
    """What others wait for; None: nobody does."""


_last: weakref.WeakKeyDictionary[Communicator, Any] = weakref.WeakKeyDictionary()
"""The stream of the call before, of each communicator."""


class Woven:
    """A load, done as a weave says; a call of the object is a call."""

    def __init__(
        self,
        comm: Communicator,
        text: str,
        load: WovenLoad,
        memory: WovenMemory | None = None,
    ) -> None:
        """Prove the weave; share memory, unless it is given (collective).

        A weave that is wrong is a `PlanError` or `ParseError` on every rank.
        """
        if (load.rank, load.ranks) != (comm.rank, comm.num_ranks):
            raise CallError(f"the load is of rank {load.rank} of {load.ranks}")
        self.weave = Weave.parse(text, load.shape, load.ranks)
        steps = placed(self.weave, load.shape)
        prove(steps, load.shape, load.ranks, self.weave.parts)
        self.load, self._comm = load, comm
        self.memory = memory or WovenMemory(load, comm)
        self._on_gpu = load.device.type == "cuda"
        self._flag = torch.zeros(1, device=load.device)
        me, n = load.rank, load.ranks
        owns = load.shape.goes and load.shape.own
        own = self.memory.share("back", me, me) if owns else None
        self._made = [load.target(s, own if s == 0 else None) for s in range(n)]
        self._streams: dict[str, Any] = {}
        if self._on_gpu:
            names = {p.step.stream for p in steps} - {"m"}
            self._streams = {
                name: torch.cuda.Stream(priority=-1 if name == "s" else 0)
                for name in sorted(names)
            }
            self._begun = torch.cuda.Event()
            self._ends = {name: torch.cuda.Event() for name in self._streams}
        self._acts: list[_Act] = []
        waited = {k for one in steps for k in one.waits}
        for at, (step, waits) in enumerate(steps):
            event = torch.cuda.Event() if self._on_gpu and at in waited else None
            self._acts.append(
                _Act(
                    self._streams.get(step.stream),
                    tuple(self._acts[k].event for k in waits),
                    self._made_ready(step),
                    event,
                )
            )
        self._graph: Any = None

    def __call__(self) -> Tensor:
        """Do the call on the current stream; return its result, until the next call.

        In a capture of the caller's own it is captured step by step.
        """
        if not self._on_gpu:
            return self._in_turn()
        if torch.cuda.is_current_stream_capturing():
            return self._once()
        here = torch.cuda.current_stream()
        last = _last.get(self._comm)
        if last is not None and last != here:
            here.wait_stream(last)  # two calls use the same memory, or the same meets
        _last[self._comm] = here
        if not self.weave.graph:
            return self._once()
        if self._graph is None:
            self._capture()
        self._graph.replay()
        return self._result

    def computing(self) -> Callable[[], None]:
        """Return what only computes, with whatever lies there; in a graph as calls."""
        acts = zip(self.weave.steps, self._acts, strict=True)
        works = [act.does for one, act in acts if one.do == "do"]

        def once() -> None:
            self.load.begin()
            for work in works:
                work()

        if not (self._on_gpu and self.weave.graph):
            return once
        once()
        torch.cuda.synchronize()
        replay: Callable[[], None] = _captured(once)[0].replay
        return replay

    def _in_turn(self) -> Tensor:
        self.load.begin()
        for act in self._acts:
            act.does()
        return self.load.finish(self.memory.whole_back())

    def _capture(self) -> None:
        self._once()
        torch.cuda.synchronize()
        self._comm.barrier()
        self._graph, self._result = _captured(self._once)

    def _once(self) -> Tensor:
        self.load.begin()
        here = torch.cuda.current_stream()
        here.record_event(self._begun)
        for stream in self._streams.values():
            stream.wait_event(self._begun)
        for act in self._acts:
            stream = act.stream or here
            for event in act.waits:
                stream.wait_event(event)
            with torch.cuda.stream(stream):
                act.does()
            if act.event is not None:
                stream.record_event(act.event)
        for name, stream in self._streams.items():
            stream.record_event(self._ends[name])
            here.wait_event(self._ends[name])
        return self.load.finish(self.memory.whole_back())

    def _made_ready(self, step: WeaveStep) -> Callable[[], None]:
        """Return what does a step: copies and matmuls of tensors that are known."""
        if step.do in MEETS:
            return functools.partial(_meet, self._comm, self._flag)
        if step.do == "store":
            return functools.partial(_copy, list(self._stored()))
        assert step.box is not None
        if step.do == "do":
            spare = self.weave.spare if self._on_gpu else 0
            work = list(self._work(step.box))
            return functools.partial(_compute, self.load.do, work, spare)
        return functools.partial(_copy, list(self._copies(step.do, step.box)))

    def _stored(self) -> Iterator[tuple[Tensor, Tensor]]:
        me, n = self.load.rank, self.load.ranks
        for s in range(1, n):
            yield self.memory.share("store", me, (me + s) % n), self.load.input(s)

    def _copies(self, do: str, box: PartsBox) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield what is copied, to and from."""
        me, n = self.load.rank, self.load.ranks
        for s in range(box.low, box.high + 1):
            if do == "push":
                other = (me - s) % n
                to, source = self.memory.share("in", other, me), self.load.input(n - s)
            elif do == "pull":
                other = (me + s) % n
                to = self.memory.share("in", me, other)
                source = self.memory.share("store", other, me)
            else:
                other = (me + s) % n
                found = self._made[s]
                assert found is not None
                to, source = self.memory.share("back", other, me), found
            rows = self._rows(source.shape[0], box)
            if rows.start < rows.stop:
                yield to[rows], source[rows]

    def _work(
        self, box: PartsBox
    ) -> Iterator[tuple[int, slice, Tensor, Tensor | None]]:
        """Yield what is computed: of which share, which rows, from where, to where."""
        me, n = self.load.rank, self.load.ranks
        for s in range(box.low, box.high + 1):
            if self.load.shape.comes and s:
                come = self.memory.share("in", me, (me + s) % n)
            else:
                come = self.load.input(s)
            rows, out = self._rows(come.shape[0], box), self._made[s]
            if rows.start < rows.stop:
                yield s, rows, come[rows], None if out is None else out[rows]

    def _rows(self, rows: int, box: PartsBox) -> slice:
        bounds = _cuts(rows, self.weave.parts)
        return slice(bounds[box.first], bounds[box.last + 1])


def _meet(comm: Communicator, flag: Tensor) -> None:
    if flag.is_cuda:
        comm.all_reduce(flag)
    else:
        comm.barrier()


def _copy(pairs: list[tuple[Tensor, Tensor]]) -> None:
    for to, source in pairs:
        to.copy_(source)


def _compute(
    do: Callable[..., None],
    work: list[tuple[int, slice, Tensor, Tensor | None]],
    spare: int,
) -> None:
    with _spared(spare):
        for s, rows, come, out in work:
            do(s, rows, come, out)


def _captured(work: Callable[[], Any]) -> tuple[Any, Any]:
    """Return a graph of some work, and what the work returned."""
    graph = torch.cuda.CUDAGraph()
    with _uncollected(), torch.cuda.graph(graph, capture_error_mode="thread_local"):
        made = work()
    return graph, made


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """Let nothing be collected: graphs and events that end spoil what is captured."""
    gc.collect()
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


@contextlib.contextmanager
def _spared(spare: int) -> Iterator[None]:
    """Let matmuls leave so many multiprocessors to kernels beside them."""
    if not spare:
        yield
        return
    aim, handle = _cublas(), ctypes.c_void_p(torch.cuda.current_blas_handle())
    many = torch.cuda.get_device_properties().multi_processor_count
    aim(handle, many - spare)
    try:
        yield
    finally:
        aim(handle, 0)


@functools.cache
def _cublas() -> Any:
    """Return what tells the library that torch has loaded how many it may use."""
    maps = Path("/proc/self/maps").read_text(encoding="utf-8").split()
    path = next((word for word in maps if "libcublas.so" in word), None)
    if path is None:
        raise CallError("spare: torch's cuBLAS is not a library of its own here")
    return ctypes.CDLL(path).cublasSetSmCountTarget
