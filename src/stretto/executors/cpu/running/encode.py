"""From a plan and a kind of call to the table that the interpreter walks.

A CPU process is one thread, so all blocks of a plan are one block here. Legend: r rank
(mine), q peer, a atom, p position, u unit of staging.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from stretto.compiler.plan import (
    Loc,
    Move,
    Plan,
    PlanLayout,
    Signal,
    Space,
    layout,
    reach,
)
from stretto.errors import PlanError
from stretto.executors import Call
from stretto.executors.cpu.running.crossing import crosses, parted, why_not_across
from stretto.executors.cpu.running.places import Memory
from stretto.executors.cpu.shared.slab import (
    CALL,
    MAX_LANES,
    MAX_SLOT,
    PACKET_HEADER,
    PACKET_REGION,
    STAGE_REGION,
    slot_class,
)
from stretto.executors.cpu.words import COPIES, HANDED, Base, Code, Header, Line
from stretto.fabric.hop import MORE
from stretto.program.elements import Operator, storage

_SHORT_BYTES = 8192
_HANDED_BYTES = 2048
"""From which on what is handed over may be written past the caches."""
_TOGETHER = 1 << 16
"""Bytes up to which a put waits for the signal after it: one call of the system."""

Addition: TypeAlias = tuple[str, Operator, int, tuple[int, ...], tuple[bool, ...]]
"""What a kernel does: type, operator, sources; of destinations, divisors, and whether
they are written past the caches."""
KernelOf: TypeAlias = Callable[
    [str, Operator, int, tuple[int, ...], tuple[bool, ...]], int
]
"""Gives such a kernel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded:
    """A call's table, and what is needed to talk about it."""

    table: NDArray[np.int64]
    text: str
    """The call, for messages: the same on all ranks that may call it together."""
    tiles: int
    touched: tuple[tuple[int, int], ...]
    """Ranges of staging that the call uses: address and bytes."""


def fingerprint(text: str) -> int:
    """Return a positive number that stands for a text."""
    digest = hashlib.sha256(text.encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1 | 1


def encode(
    plan: Plan, call: Call, text: str, memory: Memory, kernel_of: KernelOf
) -> Encoded:
    """Return the table of one rank; `text` is the call, in words."""
    return _Encoder(plan, call, text, memory, kernel_of).encoded()


class _Encoder:
    def __init__(
        self, plan: Plan, call: Call, text: str, memory: Memory, kernel_of: KernelOf
    ) -> None:
        self.call, self.memory, self.text = call, memory, text
        self.plan = replace(plan, schedule=replace(plan.schedule, blocks=1))
        self.itemsize = storage(call.dtype).itemsize
        self._copy: Addition = (call.dtype, call.op, 1, (1,), ())
        self.rank = memory.rank
        self.lanes = plan.ranks[self.rank]
        self.reach = reach(plan)
        self.slots, self.reached = self.reach.packets, self.reach.others
        self.writers = self.reach.writers[self.rank]
        self.read_here = self._read_here()
        self._check()
        ends = self._ends()
        self.layout = self._layout()
        payload = self.layout.tile * self.itemsize
        # Where all lies, and what adds it up, is looked up before words are laid out.
        self.slot_class = slot_class(payload + PACKET_HEADER)
        places, parities = memory.layout, (0, 1)
        self.stages = [places.stage(parity) for parity in parities]
        self.packets = [places.packets(self.slot_class, p) for p in parities]
        self.flags = {one: places.flag(*one) for one in ends}
        self.kernels = {one: kernel_of(*one) for one in sorted(self._additions())}

    def _ends(self) -> list[tuple[int, int, int]]:
        """Return rank, lane, and lane of its owner, of every flag that is touched."""
        return [
            (self.rank, lane, step.lane)
            if isinstance(step, Signal)
            else (step.rank, step.lane, lane)
            for lane, steps in enumerate(self.lanes)
            for step in steps
            if not isinstance(step, Move)
        ]

    def _additions(self) -> set[Addition]:
        """Return what kernels this rank's moves take."""
        return ({self._copy} if self.plan.schedule.across else set()) | {
            self._addition(step, streaming=streaming)
            for lane in self.lanes
            for step in lane
            if isinstance(step, Move) and self.memory.slabs[step.dsts[0].rank]
            for start, stop in self._runs(step)
            for streaming in {(), self._streams(step, self._bytes(start, stop))}
        }

    def _addition(self, step: Move, *, streaming: tuple[bool, ...]) -> Addition:
        divide = tuple(self._divisor(step, dst) for dst in step.dsts)
        return self.call.dtype, self.call.op, len(step.srcs), divide, streaming

    def _read_here(self) -> set[int]:
        """Return the units of this rank's staging that it reads itself."""
        return {
            src.pos + at
            for lane in self.lanes
            for step in lane
            if isinstance(step, Move)
            for src in step.srcs
            if src.space is Space.STAGE and src.rank == self.rank
            for at in range(step.stop - step.start)
        }

    def _bytes(self, start: int, stop: int) -> int:
        return int(self.layout.atom_sizes[start:stop].sum()) * self.itemsize

    def _layout(self) -> PlanLayout:
        """Choose the largest tile that the schedule allows and staging holds."""
        plan, call = self.plan, self.call
        sizes = plan.symbol_sizes(call.counts, self.itemsize)
        units = max(plan.stage_units, default=0)
        tile_bytes = plan.schedule.tile_bytes
        while True:
            got = layout(plan, sizes, self.itemsize, tile_bytes=tile_bytes)
            slot = got.tile * self.itemsize + PACKET_HEADER
            room = units * got.unit_bytes <= STAGE_REGION
            if self.slots:
                whole = 64 << slot_class(slot)
                room &= slot <= MAX_SLOT and units * whole <= PACKET_REGION
            if room:
                return got
            if tile_bytes <= 16:
                raise PlanError(
                    f"plan {plan.name}: {units} units of staging a rank do not fit; "
                    f"want at most {PACKET_REGION // 64} for packets"
                )
            tile_bytes //= 2

    def _check(self) -> None:
        """Refuse what cannot run, on every rank alike."""
        plan = self.plan
        most = self.reach.most_lanes
        if most > MAX_LANES:
            raise PlanError(
                f"plan {plan.name}: {most} lanes a rank, want at most {MAX_LANES}"
            )
        across = plan.schedule.across
        if across and (why := self.memory.none_across or why_not_across(plan)):
            raise PlanError(f"plan {plan.name}: {why}")
        for rank, space in () if across else sorted(self.reached):
            runs = plan.inputs if space is Space.INPUT else plan.outputs
            if not runs[rank]:
                name = space.name.lower()
                raise PlanError(
                    f"plan {plan.name}: rank {rank} reaches into the {name} of others "
                    f"and has no {name} to tell where theirs lies; use the other "
                    "direction, or staged memory"
                )

    def encoded(self) -> Encoded:
        """Lay out header, scratch, lanes and instructions."""
        lanes = [list(self._lane(lane)) for lane in range(len(self.lanes))]
        scratch = max((len(w) for lane in lanes for w in lane), default=0)
        at = int(Header.END) + scratch
        at += at % 2
        lane_at, code_at = at, at + 2 * len(lanes)
        size = code_at + sum(len(w) + 1 for lane in lanes for w in lane)
        table = np.zeros(size + 8 * len(lanes), dtype=np.int64)
        base = table.ctypes.data
        at = code_at
        for index, lane in enumerate(lanes):
            table[lane_at + 2 * index : lane_at + 2 * index + 2] = base + 8 * at
            for words in (*lane, [int(Code.END)]):
                after = at + len(words) + 1
                table[at:after] = [words[0], base + 8 * after, *words[1:]]
                at = after
        self._fill(table, base + 8 * lane_at, base + 8 * int(Header.END), len(lanes))
        return Encoded(
            table=table,
            text=self.text,
            tiles=self.layout.tiles,
            touched=tuple(self._touched()),
        )

    def _fill(
        self, table: NDArray[np.int64], lanes: int, scratch: int, num_lanes: int
    ) -> None:
        table[Header.SESSION] = self.memory.session
        table[Header.FINGERPRINT] = fingerprint(self.text)
        table[Header.TILES] = self.layout.tiles
        # In one tile a move's own length bounds it: it may span several atoms.
        several = self.layout.tiles > 1
        tile_bytes = self.layout.tile * self.itemsize if several else 1 << 62
        table[Header.TILE_BYTES] = tile_bytes
        table[Header.NUM_LANES] = num_lanes
        table[Header.LANES] = lanes
        table[Header.SCRATCH] = scratch
        table[Header.SHORT] = not several and self._moved() <= _SHORT_BYTES
        table[Header.HAS_INPUT] = bool(self.plan.inputs[self.rank])
        table[Header.HAS_OUTPUT] = bool(self.plan.outputs[self.rank])
        across = self.plan.schedule.across
        shared = set() if across else {space for _, space in self.reached}
        table[Header.SHARES_INPUT] = bool(
            Space.INPUT in shared and self.plan.inputs[self.rank]
        )
        table[Header.SHARES_OUTPUT] = bool(
            Space.OUTPUT in shared and self.plan.outputs[self.rank]
        )

    def _moved(self) -> int:
        """Return how many bytes this rank's moves read."""
        return sum(
            len(step.srcs) * self._bytes(step.start, step.stop)
            for lane in self.lanes
            for step in lane
            if isinstance(step, Move)
        )

    def _lane(self, lane: int) -> Iterator[list[int]]:
        flags = self.flags
        for index, step in enumerate(self.lanes[lane]):
            match step:
                case Signal(rank=q) if not self.memory.slabs[q]:
                    yield self._raise(step, lane, index)
                case Move(dsts=(Loc(rank=q), *_)) if not self.memory.slabs[q]:
                    for atom in range(step.start, step.stop):
                        yield self._put(step, lane, index, atom)
                case Signal(rank=q, lane=to, n=n):
                    flag = self.memory.slabs[q] + flags[self.rank, lane, to]
                    yield [int(Code.SIGNAL), flag, n, q]
                case Move():
                    for start, stop in self._runs(step):
                        yield from self._moves(step, index, start, stop)
                case wait:
                    own = self.memory.slabs[self.rank]
                    flag = own + flags[wait.rank, wait.lane, lane]
                    far = int(not self.memory.slabs[wait.rank])
                    yield [int(Code.WAIT), flag, wait.n, wait.rank, index, far]

    def _raise(self, step: Signal, lane: int, index: int) -> list[int]:
        """Return the instruction that signals a rank on another host."""
        flag = self.flags[self.rank, lane, step.lane]
        words = [int(Code.RAISE), step.rank, lane, flag, 0, flag + 8]
        return [*words, 0, 0, 0, step.n, index]

    def _put(self, step: Move, lane: int, index: int, atom: int) -> list[int]:
        """Return the instruction that puts one atom to a rank on another host."""
        (src,), (dst,) = step.srcs, step.dsts
        skip = atom - step.start
        base, value, _ = self._operand(src, skip)
        unit = (dst.pos + skip) * self.layout.unit_bytes
        nbytes = int(self.layout.atom_sizes[atom]) * self.itemsize
        most = min(nbytes, self.layout.tile * self.itemsize)
        way = lane | MORE if most <= _TOGETHER else lane
        words = [int(Code.PUT), dst.rank, way, 0, 0, 0, base, value]
        return [*words, self.stages[0] + unit, nbytes, index]

    def _runs(self, step: Move) -> Iterator[tuple[int, int]]:
        """Cut a move into contiguous pieces: as many atoms as lie side by side."""
        staged = any(loc.space is Space.STAGE for loc in (*step.dsts, *step.srcs))
        if self.layout.tiles == 1 and not staged:
            yield step.start, step.stop
        else:
            yield from ((a, a + 1) for a in range(step.start, step.stop))

    def _move(self, step: Move, index: int, start: int, stop: int) -> list[int]:
        nbytes, streaming = self._bytes(start, stop), 0
        kernel = self.kernels[self._addition(step, streaming=())]
        if past := self._streams(step, nbytes):
            streaming = self.kernels[self._addition(step, streaming=past)]
        skip = start - step.start
        handed = streaming and any(dst.space is Space.STAGE for dst in step.dsts)
        words = [int(Code.MOVE), kernel, streaming, nbytes]
        alone = len(step.dsts) == len(step.srcs) == 1
        copies = alone and self._divisor(step, step.dsts[0]) == 1
        how = HANDED * bool(handed) + COPIES * copies
        words += [len(step.dsts), len(step.srcs), index, how]
        for loc in (*step.dsts, *step.srcs):
            words += self._operand(loc, skip)
        return words

    def _moves(
        self, step: Move, index: int, start: int, stop: int
    ) -> Iterator[list[int]]:
        """Yield what a move is: in memory that is mapped here, and across."""
        if not self.plan.schedule.across:
            yield self._move(step, index, start, stop)
            return
        here, away = parted(self.rank, step)
        if here is not None:
            yield self._move(here, index, start, stop)
        yield from (self._cross(one, index, start, stop) for one in away)

    def _cross(self, step: Move, index: int, start: int, stop: int) -> list[int]:
        """Return one copy between an array of a peer, where it says, and mine."""
        gives = crosses(self.rank, step.dsts[0])
        (theirs,), (mine,) = (step.dsts, step.srcs)[:: 1 if gives else -1]
        is_input, skip = theirs.space is Space.INPUT, start - step.start
        offsets = self.layout.inputs if is_input else self.layout.outputs
        offset = int(offsets[theirs.rank][theirs.pos + skip]) * self.itemsize
        line = self.memory.slabs[theirs.rank] + CALL
        word = (Line.INPUT if is_input else Line.OUTPUT).at
        base, value, _ = self._operand(mine, skip)
        words = [int(Code.CROSS), line, word, offset, base, value]
        words += [self._bytes(start, stop), index, theirs.rank, 0]
        return [*words, self.kernels[self._copy], int(gives)]

    def _divisor(self, step: Move, dst: Loc) -> int:
        final = step.finish and dst.space is Space.OUTPUT
        return self.plan.num_members if final and self.call.op is Operator.AVG else 1

    def _streams(self, step: Move, nbytes: int) -> tuple[bool, ...]:
        """Return which destinations are written past the caches; () is none.

        Results that are too large to stay there; and perhaps what another core reads
        next: the interpreter finds out which is quicker.
        """
        if any(dst.space is Space.STAGE for dst in step.dsts):
            handed = nbytes >= _HANDED_BYTES
            past = tuple(handed and self._is_handed(dst) for dst in step.dsts)
        else:
            everyone = len(step.dsts + step.srcs) * self.plan.num_ranks
            is_large = nbytes * everyone > self.memory.cache_bytes
            past = (is_large,) * len(step.dsts)
        return past if any(past) else ()

    def _is_handed(self, dst: Loc) -> bool:
        """Return whether others alone read what is stored at a place of staging."""
        return dst.space is Space.STAGE and (
            dst.rank != self.rank or dst.pos not in self.read_here
        )

    def _operand(self, loc: Loc, skip: int) -> list[int]:
        """Return base, value and peer of one operand."""
        pos = loc.pos + skip
        slab = self.memory.slabs[loc.rank]
        if loc.packets:
            assert loc.space is Space.STAGE
            slots = slab + self.packets[0]
            peer = self.writers.get(pos, loc.rank)
            return [int(Base.PACKET), slots + pos * (64 << self.slot_class), peer]
        if loc.space is Space.STAGE:
            stage = slab + self.stages[0]
            return [int(Base.STAGE), stage + pos * self.layout.unit_bytes, loc.rank]
        ours = loc.space is Space.INPUT
        offsets = (self.layout.inputs if ours else self.layout.outputs)[loc.rank]
        away = self.memory.heaps[loc.rank] - self.memory.heaps[self.rank]
        base = Base.INPUT if ours else Base.OUTPUT
        return [int(base), away + int(offsets[pos]) * self.itemsize, loc.rank]

    def _touched(self) -> Iterator[tuple[int, int]]:
        """Yield the memory of every rank that this call's staging takes."""
        slabs = self.memory.slabs
        for q, units in enumerate(self.plan.stage_units):
            for parity in (0, 1) if units and slabs[q] else ():
                if self.slots:
                    slots = slabs[q] + self.packets[parity]
                    yield slots, units * (64 << self.slot_class)
                if self.reach.bulk:
                    stage = slabs[q] + self.stages[parity]
                    yield stage, units * self.layout.unit_bytes
