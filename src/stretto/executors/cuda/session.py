"""A communicator's GPU side: its slab, flag sets, watcher, and prepared plans."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.arrays import gpu_view, packed_view
from stretto.compiler.plan import Batched, ProvedPlan
from stretto.errors import CallError, DeviceError
from stretto.executors import Call, Group, Session, far_ranks
from stretto.executors import Launch as AnyLaunch
from stretto.executors.cuda.custom.channels import Channels
from stretto.executors.cuda.device.arrays import DeviceArray
from stretto.executors.cuda.device.driver import (
    JoinedStream,
    api,
    ask,
    capturing,
    current_stream,
    open_device,
    stream_handle,
)
from stretto.executors.cuda.device.mark import StreamMark
from stretto.executors.cuda.device.memory import open_slab
from stretto.executors.cuda.device.space import AddressSpace, local_rank
from stretto.executors.cuda.flags.flagsets import FlagSets
from stretto.executors.cuda.flags.recorded import Recorded
from stretto.executors.cuda.flags.regions import regions
from stretto.executors.cuda.flags.steps import memory_of
from stretto.executors.cuda.flags.testimony import Testimony
from stretto.executors.cuda.flags.watch import SessionWatch
from stretto.executors.cuda.hosts.way import FarWay
from stretto.executors.cuda.launching.counted import prepare_counted
from stretto.executors.cuda.launching.kernels import TURN, Kernels, Loaded
from stretto.executors.cuda.launching.launch import Launch
from stretto.executors.cuda.launching.prepare import OnCopy, prepare
from stretto.executors.cuda.limits import lacks
from stretto.executors.cuda.words import CONTROL
from stretto.fabric.region import GroupRegions
from stretto.program.elements import storage
from stretto.trace import wants_steps

_GRAIN = 512
"""Bytes that registered memory is taken in multiples of, and is aligned to."""


def _keep(array: Any) -> None:
    """Hold an array as long as this is held, to be called when it is let go."""


class CudaSession(Session):
    """One rank's part of a group that computes on GPUs."""

    def __init__(self, group: Group) -> None:
        if why := lacks(group.num_ranks):
            raise CallError(why)
        self.group = group
        self.device = open_device(local_rank(group))
        self._pair = group.only_transfers
        self._far_ranks = far_ranks(group)
        far = bool(self._far_ranks)
        divided = regions(group.num_ranks, channel=self._pair, far=far)
        self.regions, total = divided.sets, divided.total
        self.slab = open_slab(self.device, group, total, kept=divided.staging)
        self.space = AddressSpace(self.device, group, self.slab)
        if not far:  # far peers reach nothing of it
            self.offset_at = self.space.offset  # type: ignore[method-assign]  # it is hot
        self._given = GroupRegions(_GRAIN, _GRAIN)
        self._calls_take = total
        self._saved: list[tuple[int, NDArray[np.uint8]]] = []
        """What registered memory holds while it is given back, by offset."""
        if self.slab.nbytes > total:
            self._given.give(total, self.slab.nbytes - total)
        self.far = FarWay(self.device, group, self.regions) if far else None
        self.watch = SessionWatch(
            self.device,
            group,
            [self.slab.base + r.control + CONTROL["broken"] for r in self.regions],
            Testimony(self.slab.peers, group.rank, divided.page),
        )
        if self.far is not None:
            self.far.start(self.watch)
        self.flags = FlagSets(self.regions, channel=self._pair)
        self.recorded = Recorded(group)
        self._sides: list[JoinedStream] = []
        self._kernels = Kernels(self.device, self.quiet)
        self.load_kernel = self._kernels.load
        """Compile and load a kernel, once; none of ours may be in flight meanwhile."""
        self._closed = False

    def empty(self, shape: Sequence[int], dtype: str) -> DeviceArray:
        """Return registered memory, at the same offset on every rank (collective)."""
        shape = tuple(int(n) for n in shape)
        nbytes = math.prod(shape) * storage(dtype).itemsize
        asked = self._given.ask(f"{shape} {dtype}, cuda")
        if asked["withdrawn"]:  # what still runs may read what is given away next
            ask("cuCtxSynchronize")
        if wrong := self._given.hear([m for m, _ in self.group.exchange(asked)]):
            raise self.group.fail((), "comm.empty", mismatch=wrong)
        region = self._given.begin(nbytes)
        if region is None:
            before = self.slab.nbytes
            self.slab.grow(nbytes)
            self._given.give(before, self.slab.nbytes - before)
            region = self._given.begin(nbytes)
            assert region is not None, "the slab has just grown by this much"
        epoch = region.epoch
        return DeviceArray(
            self.slab.base + region.offset,
            shape,
            dtype,
            self.device.ordinal,
            lambda: self._given.withdraw(epoch),
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
        at = gpu_view(array)
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

    def channels(self, nbytes: int, *, blocks: int = 1, name: str = "") -> Channels:
        """Return channels to every peer, for kernels of the user's (collective)."""
        if self._far_ranks:
            raise CallError(
                f"channels reach ranks of one host; ranks {list(self._far_ranks)} are "
                "on others: make a communicator of this host's ranks, by split()"
            )
        return Channels(self, nbytes, blocks=blocks, name=name)

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

    def inside(self) -> int:
        """Return 1 while some thread launches a call, or 0."""
        return self.watch.inside[0]

    def refuses(self, plan: ProvedPlan) -> str:
        """Return why a plan does not run here, alike on every rank, or ""."""
        return plan.why_not_on_engines()

    def prepare(self, plan: ProvedPlan, call: Call) -> Launch | OnCopy:
        """Bind a plan to a kind of call: generate, compile, load, pack."""
        return prepare(self, plan, call)

    def prepare_counted(
        self, plan: ProvedPlan, gather: ProvedPlan, call: Call
    ) -> Launch:
        """Bind a plan to counts on the GPU; `call` says how large they may be.

        `gather` is an all_gather that brings everybody the counts of all ranks.
        """
        return prepare_counted(self, plan, gather, call)

    def repeated(
        self, launch: AnyLaunch, x: Any, out: Any, stream: int | None = None
    ) -> Callable[..., object]:
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

    def side_streams(self, count: int) -> list[JoinedStream]:
        """Return so many streams of our own, with events to fork and join."""
        while len(self._sides) < count:
            self._sides.append(JoinedStream())
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

    def mark(self, stream: Any = None) -> StreamMark:
        """Return the point that a stream has come to; without one, the current."""
        ordinal = self.device.ordinal
        on = current_stream(ordinal) if stream is None else stream_handle(stream)
        return StreamMark(self.device, on)

    def check(self) -> None:
        """Raise what a launch that was not waited for has met."""
        self.watch.check()

    def synchronize(self, stream: int = 0) -> None:
        """Wait for a stream, then raise what its launches met."""
        ask("cuStreamSynchronize", api().CUstream(stream))
        self.watch.check()

    def memory(self) -> dict[str, int]:
        """Return the bytes that this rank holds, by what they are for; at once."""
        slab = self.slab
        found = {"control": slab.kept}
        if slab.is_whole:
            found["staging"] = self._calls_take - slab.kept
            found["registered"] = slab.nbytes - self._calls_take
        else:
            found["saved on the host"] = sum(raw.nbytes for _, raw in self._saved)
        return found

    def keeps(self) -> str:
        """Return why this rank cannot give memory back now, or ""."""
        if capturing(current_stream(self.device.ordinal)):
            return "a graph is being captured"
        return self.slab.why_not_given()

    def suspend(self) -> None:
        """Give staging and registered memory back; what that holds goes to the host."""
        with self.quiet():
            for region in self._given.in_use():
                raw = np.empty(region.nbytes, np.uint8)
                at = self.slab.base + region.offset
                ask("cuMemcpyDtoH", raw.ctypes.data, at, raw.nbytes)
                self._saved.append((region.offset, raw))
            self.slab.give()

    def resume(self) -> None:
        """Take it again, at the same addresses, as it was (collective)."""
        self.device.enter()
        self.slab.take()
        for offset, raw in self._saved:
            ask("cuMemcpyHtoD", self.slab.base + offset, raw.ctypes.data, raw.nbytes)
        ask("cuCtxSynchronize")
        self._saved = []

    def retire(self) -> None:
        """Free everything; what graphs have of it lies nowhere: a replay faults.

        Else it would write into what the next session gets at the same addresses, and
        wait there for flags of ranks that are no more.
        """
        self.slab.keeps_addresses = True
        self.close()

    def close(self) -> None:
        """Free everything; what still runs is waited for."""
        if self._closed:
            return
        self._closed = True
        self.device.enter()
        with contextlib.suppress(DeviceError):
            ask("cuCtxSynchronize")
        self.recorded.close()
        if self.far is not None:
            self.far.close()
        self.watch.close()
        for side in self._sides:
            side.close()
        self.space.close()
        self.slab.close()
