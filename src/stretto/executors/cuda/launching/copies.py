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

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from stretto.errors import CallError, PlanError
from stretto.executors.cuda.codegen.abi import mixed
from stretto.executors.cuda.device.driver import api, ask
from stretto.executors.cuda.flags.enginewatch import EngineWatch
from stretto.executors.cuda.flags.regions import ENGINE_SLOTS, Region, engine_word
from stretto.executors.cuda.launching.launch import Key, Parameters
from stretto.executors.cuda.launching.names import CallName
from stretto.executors.cuda.launching.peers import peer_spaces
from stretto.executors.cuda.launching.services import SessionServices
from stretto.lower import Batch, Copied
from stretto.plan import Layout, Loc, Move, Plan, Signal, Space, Step, Wait, layout

__all__ = ["BoundCopies", "runs_on_engine"]

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


class BoundCopies:
    """One plan's copies, on `schedule.blocks` streams.

    They cannot be called back: where the kernel before them gave up on a rank, they
    still run, into arrays that peers have registered.
    """

    def __init__(
        self,
        session: SessionServices,
        copies: Copied,
        *,
        sizes: Any,
        itemsize: int,
        name: CallName,
    ) -> None:
        plan = copies.plan
        _refuse(plan, session.group.rank)
        one = replace(plan, schedule=replace(plan.schedule, blocks=1))
        self.plan = plan
        self.peers = peer_spaces(plan, session.group.rank)
        self._session = session
        self._rank = session.group.rank
        self._batches = copies.ranks[self._rank]
        self._where: Layout = layout(one, sizes, itemsize, tile_bytes=_WHOLE)
        self._itemsize = itemsize
        self.name = name
        self._flags = None if copies.once else session.engine_watch()
        """Where signals are told in host memory; None: kernels say who has come."""
        self._sides = session.side_streams(plan.schedule.blocks - 1)

    def parameters(self, region: Region) -> Parameters[list[Sync | Copies]]:
        """Return what is enqueued for calls with a set of flags; at first nothing."""
        return Parameters(functools.partial(self._bind, region))

    def enqueue(
        self, handle: int, packed: list[Sync | Copies], early: bool = True
    ) -> None:
        """Enqueue the copies and signals of one call."""
        main = api().CUstream(handle)
        for act in packed:
            if isinstance(act, Copies):
                self._copy(main, act)
            else:
                each = act.operations
                ask("cuStreamBatchMemOp", main, len(each), each, 0)

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

    def _bind(
        self, region: Region, key: Key, _: list[Sync | Copies] | None
    ) -> list[Sync | Copies]:
        """Return what to enqueue for a pair of arrays, with a set of flags."""
        addresses = {Space.INPUT: key[0], Space.OUTPUT: key[1]}
        space = self._session.space
        offsets = {k: space.offset(a) if a else None for k, a in addresses.items()}
        for k in self.peers:
            if offsets[k] is None:
                raise CallError(
                    f"plan {self.plan.name} ({self.plan.schedule}): copy engines reach "
                    f"peers' {k.name.lower()} only in registered memory; use "
                    "comm.empty(), or another protocol"
                )
        shared = tuple(offsets[k] for k in sorted(self.peers))
        of = self.name.fingerprint
        mark = mixed(of, shared) if shared else of
        self._session.watch.know(mark, self.plan, of, shared)

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

        if self._flags is None:
            return [self._copies(batch, locate) for batch in self._batches]
        build = _Builder(self._session, region, mark, self._flags)
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
        self, session: SessionServices, region: Region, mark: int, watch: EngineWatch
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
