"""A communicator's GPU side: its slab, flag sets, watcher, and prepared plans."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from stretto.arrays.view import packed_view, view
from stretto.collectives import storage
from stretto.errors import CallError, DeviceError
from stretto.executors import Call, Group, Session, unlike
from stretto.executors import Launch as AnyLaunch
from stretto.executors.cuda.codegen.abi import CONTROL
from stretto.executors.cuda.custom.channels import Channels
from stretto.executors.cuda.custom.proxy import Proxy
from stretto.executors.cuda.device.arena import Arena
from stretto.executors.cuda.device.arrays import DeviceArray
from stretto.executors.cuda.device.driver import (
    Side,
    api,
    ask,
    current_stream,
    open_device,
    stream_handle,
)
from stretto.executors.cuda.device.mark import Mark
from stretto.executors.cuda.device.memory import open_slab
from stretto.executors.cuda.device.space import AddressSpace, local_rank
from stretto.executors.cuda.flags.enginewatch import EngineWatch
from stretto.executors.cuda.flags.flagsets import FlagSets
from stretto.executors.cuda.flags.recorded import Recorded
from stretto.executors.cuda.flags.regions import regions
from stretto.executors.cuda.flags.steps import memory_of
from stretto.executors.cuda.flags.testimony import PAGE_BYTES, Testimony
from stretto.executors.cuda.flags.watch import Watch
from stretto.executors.cuda.hosts.way import FarWay, far_ranks
from stretto.executors.cuda.launching.counted import prepare_counted
from stretto.executors.cuda.launching.kernels import TURN, Kernels, Loaded
from stretto.executors.cuda.launching.launch import Launch
from stretto.executors.cuda.launching.prepare import OnCopy, prepare
from stretto.executors.cuda.limits import lacks
from stretto.ir import Verified
from stretto.lower import Batched, why_not_in_halves
from stretto.plan import Plan
from stretto.trace import wants_steps

__all__ = ["CudaSession"]


def _keep(array: Any) -> None:
    """Hold an array as long as this is held, to be called when it is let go."""


class CudaSession(Session):
    """One rank's part of a group that computes on GPUs."""

    def __init__(self, group: Group) -> None:
        why = lacks(group.num_ranks, several_hosts=bool(far_ranks(group)))
        if why:
            raise CallError(why)
        self.group = group
        self.device = open_device(local_rank(group))
        self._pair = group.only_transfers
        self._far_ranks = far_ranks(group)
        far = bool(self._far_ranks)
        self.regions, total = regions(group.num_ranks, channel=self._pair, far=far)
        page, total = total, total + PAGE_BYTES
        self.slab = open_slab(self.device, group, total)
        self.space = AddressSpace(self.device, group, self.slab)
        if not far:  # far peers reach nothing of it
            self.offset_at = self.space.offset  # type: ignore[method-assign]  # it is hot
        self._arena = Arena()
        if self.slab.nbytes > total:
            self._arena.grow(total, self.slab.nbytes - total)
        self.far = FarWay(self.device, group, self.regions) if far else None
        self.watch = Watch(
            self.device,
            group,
            [self.slab.base + r.control + CONTROL["broken"] for r in self.regions],
            Testimony(self.slab.peers, group.rank, page),
        )
        if self.far is not None:
            self.far.start(self.watch)
        self.flags = FlagSets(self.regions, channel=self._pair)
        self.recorded = Recorded(group)
        self._engine_watch: EngineWatch | None = None
        self._proxy: Proxy | None = None
        self._sides: list[Side] = []
        self._kernels = Kernels(self.device, self.quiet)
        self.load_kernel = self._kernels.load
        """Compile and load a kernel, once; none of ours may be in flight meanwhile."""
        self._closed = False

    def empty(self, shape: Sequence[int], dtype: str) -> DeviceArray:
        """Return registered memory, at the same offset on every rank (collective)."""
        shape = tuple(int(n) for n in shape)
        nbytes = math.prod(shape) * storage(dtype).itemsize
        notes = self._arena.noted()
        if notes:  # what still runs may read what is about to be given away
            ask("cuCtxSynchronize")
        what = f"{shape} {dtype}, cuda"
        said = [m for m, _ in self.group.exchange({"empty": what, "notes": notes})]
        if wrong := unlike([m.get("empty", "") for m in said]):
            raise self.group.fail((), "comm.empty", mismatch=wrong)
        self._arena.settle([m["notes"] for m in said])
        start = self._arena.allocate(nbytes)
        if start is None:
            before = self.slab.nbytes
            self.slab.grow(nbytes)
            self._arena.grow(before, self.slab.nbytes - before)
            start = self._arena.allocate(nbytes)
            assert start is not None, "the slab has just grown by this much"
        offset = start
        return DeviceArray(
            self.slab.base + offset,
            shape,
            dtype,
            self.device.ordinal,
            lambda: self._arena.note(offset),
        )

    def register(self, array: Any) -> bool:
        """Make an array of somebody else's zero-copy (collective); False: it is not.

        What cannot be shared stays staged on every rank, with the same results.
        """
        if self._far_ranks:
            return False
        with self.quiet():
            return self.space.register(array)

    def deregister(self, array: Any) -> None:
        """Undo `register` (collective); graphs that captured it are not for use."""
        if self._far_ranks:
            return
        with self.quiet():
            self.space.deregister(array)

    def peers(self, array: Any) -> list[DeviceArray]:
        """Return every rank's array like this one, as this rank reaches them."""
        at = view(array)
        offset = self.space.offset(at.start, max(1, at.nbytes))
        if offset is None or not at.contiguous:
            raise CallError(
                f"rank {self.group.rank}: peers() of {at.nbytes} bytes that peers do "
                f"not reach; want contiguous memory of empty(), or registered"
            )
        kind, ranks = str(at.dtype), range(self.group.num_ranks)
        ordinal, keep = self.device.ordinal, functools.partial(_keep, array)
        starts = [self.space.peer_address(q, offset) for q in ranks]
        return [DeviceArray(one, at.shape, kind, ordinal, keep) for one in starts]

    def channels(
        self, nbytes: int, *, blocks: int = 1, kind: str = "memory"
    ) -> Channels:
        """Return channels to every peer, for kernels of the user's (collective)."""
        if self._far_ranks:
            raise CallError(
                f"channels reach ranks of one host; ranks {list(self._far_ranks)} are "
                "on others: make a communicator of this host's ranks, by split()"
            )
        return Channels(self, nbytes, blocks=blocks, kind=kind)

    def proxy(self) -> Proxy:
        """Return the thread that serves engine channels, started at its first use."""
        if self._proxy is None:
            self._proxy = Proxy(self.device, self.group, self.watch)
        return self._proxy

    def offset(self, array: Any) -> int | None:
        """Return where registered memory begins, the same on every rank, or None.

        All of the array must be registered: peers touch all of it.
        """
        if self._far_ranks:  # peers on other hosts cannot reach it
            return None
        at = packed_view(array)
        return self.space.offset(at.start, max(1, at.nbytes))

    def offset_at(self, address: int, nbytes: int) -> int | None:
        """Return the same of memory that is known by where it lies."""
        return None if self._far_ranks else self.space.offset(address, nbytes)

    def renew(self) -> None:
        """Note calls by compiled code, where this process has a compiler by now."""
        self.recorded.renew()

    def inside(self) -> int:
        """Return 1 while some thread launches a call, or 0."""
        return self.watch.inside[0]

    def refuses(self, plan: Verified[Plan]) -> str:
        """Return why a plan does not run here, alike on every rank, or ""."""
        return why_not_in_halves(plan)

    def prepare(self, plan: Verified[Plan], call: Call) -> Launch | OnCopy:
        """Bind a plan to a kind of call: generate, compile, load, pack."""
        return prepare(self, plan, call)

    def prepare_counted(
        self, plan: Verified[Plan], gather: Verified[Plan], call: Call
    ) -> Launch:
        """Bind a plan to counts on the GPU; `call` says how large they may be.

        `gather` is an all_gather that brings everybody the counts of all ranks.
        """
        return prepare_counted(self, plan, gather, call)

    def repeated(
        self, launch: AnyLaunch, x: Any, out: Any, stream: int | None = None
    ) -> Callable[[], None]:
        """Return a prepared launch on addresses, ready to be called."""
        if isinstance(launch, Launch):
            return launch.repeat(x, out, stream)
        return super().repeated(launch, x, out)

    def load_call(
        self, plan: Batched, call: Call, *, share: int = 0, counted: bool = False
    ) -> Loaded:
        """Return the kernel of a plan for a kind of call, compiled and loaded."""
        from stretto.executors.cuda.codegen.generate import generate

        mine = self.group.rank
        both = (1 - mine, mine) if self._pair else (mine,)
        steps = wants_steps()
        with TURN:  # a transfer loads both ends before one runs
            for rank in both:
                kernel = generate(
                    plan,
                    rank=rank,
                    dtype=call.dtype,
                    op=call.op,
                    epilogue=call.epilogue,
                    rows=call.rows,
                    share=share,
                    counted=counted,
                    steps=steps,
                )
                loaded = self.load_kernel(kernel)
        if steps:
            memory = memory_of(self.device)
            self.recorded.write_to(memory, self.slab.base, self.regions)
        return loaded

    def engine_watch(self) -> EngineWatch:
        """Return the deadlines of copy-engine calls, made at their first use."""
        if self._engine_watch is None:
            made = EngineWatch(self.group, self.regions, self.slab.base)
            self.watch.engine = self._engine_watch = made
        return self._engine_watch

    def side_streams(self, count: int) -> list[Side]:
        """Return so many streams of our own, with events to fork and join."""
        while len(self._sides) < count:
            self._sides.append(Side())
        return self._sides[:count]

    @contextlib.contextmanager
    def quiet(self) -> Iterator[None]:
        """Hold while none of our kernels is in flight, for what may wait for them.

        Loading a module may wait for the device; a kernel of ours on it may wait for a
        peer; and that peer for this very rank. Graphs and people's own kernels run on
        streams that nobody told us of, so all of the context is waited for; but while a
        graph is captured, which that would spoil, only the streams that we know.
        """
        self.device.enter()
        relaxed = api().CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        before = ask("cuThreadExchangeStreamCaptureMode", relaxed)
        try:
            self.flags.settle(current_stream(self.device.ordinal))
            yield
        finally:
            ask("cuThreadExchangeStreamCaptureMode", before)

    def asked(self, ns: int) -> None:
        """Say when the next call was asked for, where that was before its start."""
        self.recorded.asked(ns)

    def mark(self, stream: Any = None) -> Mark:
        """Return the point that a stream has come to; without one, the current."""
        ordinal = self.device.ordinal
        on = current_stream(ordinal) if stream is None else stream_handle(stream)
        return Mark(self.device, on)

    def check(self) -> None:
        """Raise what a launch that was not waited for has met."""
        self.watch.check()

    def synchronize(self, stream: int = 0) -> None:
        """Wait for a stream, then raise what its launches met."""
        ask("cuStreamSynchronize", api().CUstream(stream))
        self.watch.check()

    def close(self) -> None:
        """Free everything; what still runs is waited for."""
        if self._closed:
            return
        self._closed = True
        self.device.enter()
        with contextlib.suppress(DeviceError):
            ask("cuCtxSynchronize")
        self.recorded.close()
        if self._proxy is not None:
            self._proxy.close()
        if self.far is not None:
            self.far.close()
        self.watch.close()
        if self._engine_watch is not None:
            self._engine_watch.close()
        for side in self._sides:
            side.close()
        self.space.close()
        self.slab.close()
        self._kernels.close()
