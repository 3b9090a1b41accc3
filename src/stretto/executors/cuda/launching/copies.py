"""Plans that copy engines run: no thread block, no SM, larger packets on the wire.

Two barriers of one small block each, kernels with deadlines of their own, stand before
and after the copies: everybody has entered, and everybody's copies have ended. What is
to be passed on is not for copy engines: `compiler.rewrite.copying` says why.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any

from stretto.compiler.plan import (
    Batch,
    Copied,
    Loc,
    Move,
    Plan,
    PlanLayout,
    Space,
    layout,
)
from stretto.errors import CallError
from stretto.executors.cuda.codegen.abi import mixed
from stretto.executors.cuda.device.driver import api, ask
from stretto.executors.cuda.flags.regions import FlagRegion
from stretto.executors.cuda.launching.launch import Key, Parameters
from stretto.executors.cuda.launching.names import CallName
from stretto.executors.cuda.launching.peers import peer_spaces
from stretto.executors.cuda.launching.services import SessionServices

_WHOLE = 1 << 62


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
        one = replace(plan, schedule=replace(plan.schedule, blocks=1))
        self.plan = plan
        self.peers = peer_spaces(plan, session.group.rank)
        self._session = session
        self._rank = session.group.rank
        self._batches = copies.ranks[self._rank]
        self._where: PlanLayout = layout(one, sizes, itemsize, tile_bytes=_WHOLE)
        self._itemsize = itemsize
        self.name = name
        self._sides = session.side_streams(plan.schedule.blocks - 1)

    def parameters(self, region: FlagRegion) -> Parameters[list[Copies]]:
        """Return what is enqueued for calls with a set of flags; at first nothing."""
        return Parameters(functools.partial(self._bind, region))

    def enqueue(self, handle: int, packed: list[Copies], early: bool = True) -> None:
        """Enqueue the copies of one call."""
        main = api().CUstream(handle)
        for copies in packed:
            self._copy(main, copies)

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
        self, region: FlagRegion, key: Key, _: list[Copies] | None
    ) -> list[Copies]:
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

        return [self._copies(batch, locate) for batch in self._batches]

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
