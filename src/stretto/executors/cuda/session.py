"""A communicator's GPU side: its slab, flag sets, watcher, and prepared plans."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from stretto.collectives import storage
from stretto.errors import CallError, DeviceError, PlanError
from stretto.executors import Call, Group, Launch, describe
from stretto.executors.cuda.codegen.abi import CONTROL, MAX_RANKS, Kernel, fingerprint
from stretto.executors.cuda.custom.channels import Channels
from stretto.executors.cuda.device.arena import Arena
from stretto.executors.cuda.device.arrays import DeviceArray, where
from stretto.executors.cuda.device.driver import (
    Side,
    api,
    ask,
    current_stream,
    open_device,
)
from stretto.executors.cuda.device.mark import Mark
from stretto.executors.cuda.device.memory import open_slab
from stretto.executors.cuda.device.space import AddressSpace, local_rank
from stretto.executors.cuda.flags.enginewatch import EngineWatch
from stretto.executors.cuda.flags.flagsets import FlagSets
from stretto.executors.cuda.flags.regions import (
    fit,
    regions,
    symbol_sizes,
)
from stretto.executors.cuda.flags.testimony import PAGE_BYTES, Testimony
from stretto.executors.cuda.flags.watch import Watch
from stretto.executors.cuda.launching.aside import aside
from stretto.executors.cuda.launching.bound import (
    KernelLaunch,
    peer_spaces,
    stream_handle,
)
from stretto.executors.cuda.launching.byhand import hand_launch, taken_by_hand
from stretto.executors.cuda.launching.counted import (
    CountedLaunch,
    counted,
    require_kernel_of_own_memory,
)
from stretto.executors.cuda.launching.engine import EngineLaunch, runs_on_engine
from stretto.executors.cuda.launching.fused import fused_launch
from stretto.executors.cuda.launching.launch import Loaded
from stretto.executors.cuda.launching.loading import Kernels
from stretto.executors.cuda.launching.pitched import pitched_launch
from stretto.executors.cuda.launching.proxy import Proxy
from stretto.ir import Verified
from stretto.lower import (
    Batched,
    barrier_plan,
    batched,
    closed,
    copied,
    hands_round_on_engine,
    in_halves,
    why_not_in_halves,
)
from stretto.plan import Layout, Plan, layout
from stretto.verify import verify_plan

__all__ = ["CudaSession"]


class CudaSession:
    """One rank's part of a group that computes on GPUs."""

    def __init__(self, group: Group) -> None:
        if group.num_ranks > MAX_RANKS:
            raise CallError(
                f"{group.num_ranks} ranks; the cuda executor serves {MAX_RANKS}"
            )
        self.group = group
        self.device = open_device(local_rank(group))
        self._pair = bool(getattr(group, "only_transfers", False))
        self.regions, total = regions(group.num_ranks, channel=self._pair)
        page, total = total, total + PAGE_BYTES
        self.slab = open_slab(self.device, group, total)
        self.space = AddressSpace(self.device, group, self.slab)
        self.offset_at = self.space.offset
        self._arena = Arena()
        if self.slab.nbytes > total:
            self._arena.grow(total, self.slab.nbytes - total)
        self.watch = Watch(
            self.device,
            group,
            [self.slab.base + r.control + CONTROL["broken"] for r in self.regions],
            Testimony(self.slab.peers, group.rank, page),
        )
        self.flags = FlagSets(self.regions, channel=self._pair)
        self._engine_watch: EngineWatch | None = None
        self._proxy: Proxy | None = None
        self._sides: list[Side] = []
        self._kernels = Kernels(self.device, self.quiet)
        self._closed = False

    def empty(self, shape: Sequence[int], dtype: str) -> DeviceArray:
        """Return registered memory, at the same offset on every rank (collective)."""
        shape = tuple(int(n) for n in shape)
        nbytes = math.prod(shape) * storage(dtype).itemsize
        notes = self._arena.noted()
        if notes:  # what still runs may read what is about to be given away
            ask("cuCtxSynchronize")
        said = [m for m, _ in self.group.exchange({"empty": nbytes, "notes": notes})]
        if len({m["empty"] for m in said}) != 1:
            raise CallError(
                f"empty() of {[m['empty'] for m in said]} bytes by rank; it is "
                "collective: want the same shape and dtype on every rank"
            )
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
        with self.quiet():
            return self.space.register(array)

    def deregister(self, array: Any) -> None:
        """Undo `register` (collective); graphs that captured it are not for use."""
        with self.quiet():
            self.space.deregister(array)

    def channels(
        self, nbytes: int, *, blocks: int = 1, kind: str = "memory"
    ) -> Channels:
        """Return channels to every peer, for kernels of the user's (collective)."""
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
        at = where(array)
        return self.space.offset(at.pointer, max(1, at.nbytes))

    def refuses(self, plan: Verified[Plan]) -> str:
        """Return why a plan does not run here, alike on every rank, or ""."""
        return why_not_in_halves(plan)

    def prepare(self, plan: Verified[Plan], call: Call) -> Launch:
        """Bind a plan to a kind of call: generate, compile, load, pack."""
        launch = self._prepare(plan, call)
        return aside(self, launch, plan.value, call) if call.aside else launch

    def _prepare(self, plan: Verified[Plan], call: Call) -> Launch:
        value = plan.value
        if value.num_ranks != self.group.num_ranks:
            raise PlanError(
                f"plan {value.name} is for {value.num_ranks} ranks; "
                f"this group has {self.group.num_ranks}"
            )
        sizes = symbol_sizes(value, call)
        itemsize = storage(call.dtype).itemsize
        mark = fingerprint(value, call.dtype, call.op.value, call.counts)
        self.watch.name(mark, describe(value, call))
        if call.epilogue is not None:
            return fused_launch(self, plan, call, call.epilogue, mark)
        if any(call.rows):
            return pitched_launch(self, plan, call, sizes, mark)
        own = taken_by_hand(value, call, self.regions[0].share)
        if own is not None:
            return hand_launch(self, own, value, call, sizes, mark)
        if runs_on_engine(value):
            return EngineLaunch(copied(plan), self, sizes, itemsize, mark)
        if not hands_round_on_engine(value):
            return self.kernel_launch(plan, call, sizes, mark)
        where = fit(value, sizes, itemsize, region=self.regions[0])
        halves = in_halves(closed(plan) if where.tiles > 1 else plan)
        enter = self._bound(halves.kernel, call, where, mark)
        mark = self.watch.part(mark ^ 1 or 1, mark)
        return EngineLaunch(halves.copies, self, sizes, itemsize, mark, enter=enter)

    def prepare_counted(
        self, plan: Verified[Plan], gather: Verified[Plan], call: Call
    ) -> CountedLaunch:
        """Bind a plan to counts on the GPU; `call` says how large they may be.

        `gather` is an all_gather that brings everybody the counts of all ranks.
        """
        from stretto.executors.cuda.codegen.generate import kernel_of

        require_kernel_of_own_memory(plan.value)
        plan = closed(plan)  # how many tiles there are, nobody here knows
        value = plan.value
        sizes, itemsize = symbol_sizes(value, call), storage(call.dtype).itemsize
        n = value.num_ranks
        parts = len(call.counts) // n
        row = Call(dtype="int64", counts=(parts,) * n)
        mark = fingerprint(value, call.dtype, call.op.value, (*call.counts, -1))
        self.watch.name(mark, f"{describe(value, call)}, with counts on the GPU")
        how = dict(rank=self.group.rank, dtype=call.dtype, op=call.op)  # noqa: C408
        main = KernelLaunch(
            self,
            value,
            self.load_kernel(counted(kernel_of(plan, **how), value)),
            where=fit(value, sizes, itemsize, region=self.regions[0]),
            fingerprint=mark,
        )
        return CountedLaunch(
            self,
            self.kernel_launch(
                gather,
                row,
                symbol_sizes(gather.value, row),
                self.watch.part(mark ^ 1 or 1, mark),
            ),
            main,
            itemsize=itemsize,
            most=max(call.counts),
        )

    def kernel_launch(
        self,
        plan: Verified[Plan],
        call: Call,
        sizes: Any,
        mark: int,
        extra: Sequence[int] = (),
    ) -> KernelLaunch:
        """Bind a plan to a kernel of its own; `extra` are words of its table."""
        itemsize = storage(call.dtype).itemsize
        where = fit(plan.value, sizes, itemsize, region=self.regions[0])
        plan = closed(plan) if where.tiles > 1 else plan
        return self._bound(batched(plan), call, where, mark, extra)

    def _bound(
        self,
        plan: Batched,
        call: Call,
        where: Layout,
        mark: int,
        extra: Sequence[int] = (),
    ) -> KernelLaunch:
        with self._kernels.turn:  # a transfer loads both ends before one runs
            loaded = self.load_call(plan, call)
            if self._pair:
                self.load_call(plan, call, rank=1 - self.group.rank)
        return KernelLaunch(
            self, plan.plan, loaded, where=where, fingerprint=mark, extra=extra
        )

    def load_call(
        self, plan: Batched, call: Call, share: int = 0, rank: int | None = None
    ) -> Loaded:
        """Return the kernel of a plan for a kind of call, compiled and loaded."""
        from stretto.executors.cuda.codegen.generate import generate

        return self.load_kernel(
            generate(
                plan,
                rank=self.group.rank if rank is None else rank,
                dtype=call.dtype,
                op=call.op,
                epilogue=call.epilogue,
                rows=call.rows,
                share=share,
            )
        )

    def load_kernel(self, kernel: Kernel) -> Loaded:
        """Compile and load a kernel, once; none of ours may be in flight meanwhile."""
        return self._kernels.load(kernel)

    def barrier(self, mark: int, plan: Plan) -> KernelLaunch:
        """Return a barrier of everybody as a kernel, for the calls of a plan."""
        meet = batched(verify_plan(barrier_plan(plan.name, plan.num_ranks)))
        return KernelLaunch(
            self,
            meet.plan,
            self.load_call(meet, Call(dtype="uint8")),
            where=layout(meet.plan, np.zeros(0, np.int64), 1),
            fingerprint=mark,
            shares=peer_spaces(plan, self.group.rank),
        )

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
        if self._proxy is not None:
            self._proxy.close()
        self.watch.close()
        if self._engine_watch is not None:
            self._engine_watch.close()
        for side in self._sides:
            side.close()
        self.space.close()
        self.slab.close()
        self._kernels.close()
