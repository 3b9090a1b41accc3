"""Plans that copy engines run: no thread block, no SM, larger packets on the wire.

A plan's moves become copies and its signals become values that a stream writes and
waits for. A captured stream replays the same values for ever, so a flag must be as it
was when the call ends: the waiter takes the flag down, and then frees its *credit* in
the signaller's memory, without which the signaller does not raise it again.

    signal n to q:  wait my credit[q][n] == 0, set it; then q's flag[me][n] = mark
    wait n from q:  wait my flag[q][n] == mark, clear it; then q's credit[me][n] = 0

`mark` is the call's fingerprint: ranks that call different things do not meet. A
stream's wait has no deadline, so these calls say in host memory where they are, and the
watcher frees them when one stays there too long.

Most plans copy once, between everybody's entry and everybody's exit. Those need none of
this: two barriers of one small block each, kernels with deadlines of their own, are 20
times faster than stream operations are in a graph. `lower.copied` says which are which.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from stretto.errors import CallError, PlanError
from stretto.executors.cuda.device.arrays import pointer, require_near
from stretto.executors.cuda.device.driver import api, ask, current_stream
from stretto.executors.cuda.flags.enginewatch import EngineWatch
from stretto.executors.cuda.flags.flagsets import FlagSet
from stretto.executors.cuda.flags.regions import ENGINE_SLOTS, Region, engine_word
from stretto.executors.cuda.launching.bound import (
    KernelLaunch,
    peer_spaces,
    stream_handle,
)
from stretto.executors.cuda.launching.host import Host
from stretto.executors.cuda.launching.launch import KEPT, mixed
from stretto.lower import Batch, Copied
from stretto.plan import Layout, Loc, Move, Plan, Signal, Space, Step, Wait, layout

__all__ = ["EngineLaunch", "runs_on_engine"]

_WHOLE = 1 << 62


@dataclass(frozen=True, slots=True)
class Sync:
    """Stream operations that are enqueued together."""

    operations: list[Any]


@dataclass(frozen=True, slots=True)
class Copies:
    """Copies (to, from, bytes) that do not depend on each other."""

    far: list[tuple[int, int, int]]
    """To or from a peer, beginning with the next neighbour."""
    local: list[tuple[int, int, int]]


def runs_on_engine(plan: Plan) -> bool:
    """Return whether copy engines run a plan."""
    return plan.schedule.protocol == "engine"


class EngineLaunch:
    """Run one plan by copies on `schedule.blocks` streams."""

    def __init__(
        self,
        copies: Copied,
        session: Host,
        sizes: Any,
        itemsize: int,
        mark: int,
        *,
        enter: KernelLaunch | None = None,
    ) -> None:
        """`enter` is a kernel before the copies, after which all may be written to."""
        plan = copies.plan
        _refuse(plan, session.group.rank)
        self._batches = copies.ranks[session.group.rank]
        one = replace(plan, schedule=replace(plan.schedule, blocks=1))
        self.plan = plan
        self._session = session
        self._rank = session.group.rank
        self._where: Layout = layout(one, sizes, itemsize, tile_bytes=_WHOLE)
        self._itemsize = itemsize
        self._mark = mark
        self._peers = peer_spaces(plan, self._rank)
        self._barrier: KernelLaunch | None = None
        if copies.once:
            self._barrier = session.barrier(mark, plan)
        else:
            self._watch: EngineWatch = session.engine_watch()
        self._enter = enter or self._barrier
        self._sides = session.side_streams(plan.schedule.blocks - 1)
        self._kept: dict[tuple[int, int, int], list[Sync | Copies]] = {}
        session.space.tell(self.forget)

    def forget(self) -> None:
        """Look up anew where arrays lie: what was registered has changed."""
        self._kept.clear()

    def __call__(self, x: Any, out: Any = None, stream: Any = None) -> None:
        """Enqueue the collective on the caller's stream, and return at once.

        Copies cannot be called back: where the kernel before them gave up on a rank,
        they still run, into arrays that peers have registered.
        """
        session = self._session
        session.watch.check()
        ordinal = session.device.ordinal
        handle = current_stream(ordinal) if stream is None else stream_handle(stream)
        session.device.require_context()
        flags = session.flags.of(handle)
        with flags.turn(handle):
            self._enqueue(flags, handle, x, out)

    def _enqueue(self, flags: FlagSet, handle: int, x: Any, out: Any) -> None:
        """Enqueue the kernels and copies of one call."""
        ordinal = self._session.device.ordinal
        if self._enter is not None:
            self._enter(x, out, stream=handle)
        key = (flags.nth, pointer(x), pointer(out))
        acts = self._kept.get(key)
        if acts is None:
            require_near(x, ordinal)
            require_near(out, ordinal)
            if len(self._kept) >= KEPT:
                self._kept.clear()
            acts = self._kept[key] = self._bind(flags.region, *key[1:])
        main = api().CUstream(handle)
        for act in acts:
            if isinstance(act, Copies):
                self._copy(main, act)
            else:
                each = act.operations
                ask("cuStreamBatchMemOp", main, len(each), each, 0)
        if self._barrier is not None:
            self._barrier(x, out, stream=handle)

    def _copy(self, main: Any, copies: Copies) -> None:
        """Enqueue copies: to and from peers in turn, within this GPU beside them."""
        sides = self._sides if copies.local else self._sides[: len(copies.far) - 1]
        if sides:
            ask("cuEventRecord", sides[0].begin, main)
        for side in sides:
            ask("cuStreamWaitEvent", side.stream, sides[0].begin, 0)
        streams = [main, *(side.stream for side in sides)]
        for to, source, nbytes in copies.local:
            ask("cuMemcpyDtoDAsync", to, source, nbytes, streams[-1])
        far = streams[: max(1, len(streams) - bool(copies.local))]
        for index, (to, source, nbytes) in enumerate(copies.far):
            on = far[index % len(far)]
            ask("cuMemcpyDtoDAsync", to, source, nbytes, on)
        for side in sides:
            ask("cuEventRecord", side.end, side.stream)
            ask("cuStreamWaitEvent", main, side.end, 0)

    def _bind(self, region: Region, source: int, target: int) -> list[Sync | Copies]:
        """Return what to enqueue for a pair of arrays, with a set of flags."""
        addresses = {Space.INPUT: source, Space.OUTPUT: target}
        space = self._session.space
        offsets = {k: space.offset(a) if a else None for k, a in addresses.items()}
        for k in self._peers:
            if offsets[k] is None:
                raise CallError(
                    f"plan {self.plan.name} ({self.plan.schedule}): copy engines reach "
                    f"peers' {k.name.lower()} only in registered memory; use "
                    "comm.empty(), or another protocol"
                )
        shared = tuple(offsets[k] for k in sorted(self._peers))
        mark = mixed(self._mark, shared) if shared else self._mark
        self._session.watch.know(mark, self.plan, self._mark, shared)

        def locate(loc: Loc) -> int:
            """Return the address of a location."""
            ends = (
                self._where.inputs
                if loc.space is Space.INPUT
                else (self._where.outputs)
            )
            begin = int(ends[loc.rank][loc.pos])
            offset = offsets[loc.space]
            if loc.rank == self._rank:
                base = addresses[loc.space]
            else:
                assert offset is not None, "peers' spaces were checked above"
                base = space.peer_address(loc.rank, offset)
            return base + begin * self._itemsize

        if self._barrier is not None:
            return [self._copies(batch, locate) for batch in self._batches]
        build = _Builder(self._session, region, mark, self._watch)
        acts: list[Sync | Copies] = [build.enter()]
        for batch in self._batches:
            match batch[0][1]:
                case Move():
                    acts.append(self._copies(batch, locate))
                case Signal():
                    acts.append(build.signals(batch))
                case Wait():
                    acts.append(build.waits(batch))
        acts.append(build.leave())
        return acts

    def _copies(self, batch: Batch, locate: Any) -> Copies:
        """Return the copies of moves, each rank beginning with its next neighbour."""
        n = self.plan.num_ranks
        found: list[tuple[int, tuple[int, int, int]]] = []
        for _, move in batch:
            assert isinstance(move, Move), "batches are of one kind"
            nbytes = self._itemsize * int(
                self._where.atom_sizes[move.start : move.stop].sum()
            )
            (source,) = move.srcs
            for dst in move.dsts:
                to, begin = locate(dst), locate(source)
                far = dst.rank if dst.rank != self._rank else source.rank
                if nbytes and to != begin:
                    found.append(((far - self._rank) % n, (to, begin, nbytes)))
        found.sort()
        return Copies(
            far=[copy for turn, copy in found if turn],
            local=[copy for turn, copy in found if not turn],
        )


class _Builder:
    """Makes the stream operations of one call."""

    def __init__(
        self, session: Host, region: Region, mark: int, watch: EngineWatch
    ) -> None:
        self._rank = session.group.rank
        self._bases = session.space.peers
        self._region = region
        self._mark = mark
        self._inside, self._at = watch.words(region)
        kinds = api().CUstreamBatchMemOpType
        self._write_kind = kinds.CU_STREAM_MEM_OP_WRITE_VALUE_32
        self._wait_kind = kinds.CU_STREAM_MEM_OP_WAIT_VALUE_32

    def enter(self) -> Sync:
        """Say that the call began."""
        return Sync([self._write(self._inside, self._mark), self._write(self._at, 1)])

    def leave(self) -> Sync:
        """Say that the call ended."""
        return Sync([self._write(self._inside, 0)])

    def signals(self, steps: Sequence[tuple[int, Step]]) -> Sync:
        """Raise flags at peers, once their credits are free."""
        waits, sets, flags = [], [], []
        for _, step in steps:
            assert isinstance(step, Signal), "steps were grouped by their type"
            credit = self._word(self._rank, "credit", step.rank, step.n)
            flag = self._word(step.rank, "flag", self._rank, step.n)
            waits.append(self._wait(credit, 0))
            sets.append(self._write(credit, 1))
            flags.append(self._write(flag, self._mark))
        return Sync([self._write(self._at, steps[0][0] + 1), *waits, *sets, *flags])

    def waits(self, steps: Sequence[tuple[int, Step]]) -> Sync:
        """Wait for peers' flags, then take them down and free the peers' credits.

        All waits come first: while one is missing, the others' flags still stand, and
        the watcher sees who has come.
        """
        waits, clears = [], []
        for _, step in steps:
            assert isinstance(step, Wait), "steps were grouped by their type"
            flag = self._word(self._rank, "flag", step.rank, step.n)
            credit = self._word(step.rank, "credit", self._rank, step.n)
            waits.append(self._wait(flag, self._mark))
            clears += [self._write(flag, 0), self._write(credit, 0)]
        return Sync([self._write(self._at, steps[0][0] + 1), *waits, *clears])

    def _word(self, owner: int, kind: str, peer: int, n: int) -> int:
        return self._bases[owner] + engine_word(self._region, kind, peer, n)

    def _write(self, address: int, value: int) -> Any:
        operation = api().CUstreamBatchMemOpParams()
        part = operation.writeValue
        part.operation = self._write_kind
        part.address = api().CUdeviceptr(address)
        part.value = value
        part.flags = 0
        return operation

    def _wait(self, address: int, value: int) -> Any:
        operation = api().CUstreamBatchMemOpParams()
        part = operation.waitValue
        part.operation = self._wait_kind
        part.address = api().CUdeviceptr(address)
        part.value = value
        part.flags = int(api().CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_EQ)
        return operation


def _refuse(plan: Plan, rank: int) -> None:
    """Raise unless copy engines can run a plan."""
    why = ""
    for _, _, _, step in plan.steps():
        if not isinstance(step, Move):
            if step.n >= ENGINE_SLOTS:
                why = f"signals more than {ENGINE_SLOTS - 1} times on a channel"
        elif len(step.srcs) > 1:
            why = "reduces"
        elif any(loc.space is Space.STAGE for loc in (*step.srcs, *step.dsts)):
            why = "stages"
    if len(plan.ranks[rank]) > 1:
        why = "has several lanes"
    if why:
        raise PlanError(
            f"plan {plan.name} ({plan.schedule}) {why}; copy engines only copy between "
            "registered arrays: want a zero_copy plan without reductions"
        )
