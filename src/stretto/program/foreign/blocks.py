"""From thread blocks that send and receive to a program read line by line.

A foreign schedule says what every block does, in order; sends and receives of a pair of
ranks on a channel match first in, first out. Here the blocks run as far as they can, in
turn, and every transfer becomes one assignment. Data sent before they are received are
remembered where they lie; only if that place is overwritten first are they set aside.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from stretto.errors import ParseError
from stretto.program.ir import INPUT, OUTPUT, Op, Params, Program, Ref, freeze

MOST_RANKS = 1 << 12
MOST_CHUNKS = 1 << 18
"""Chunks of a buffer: more are a slip, and would fill memory when they are followed."""

_SENDS = ("s", "rcs", "rrs", "rrcs")
_RECEIVES = ("r", "rcs", "rrc", "rrs", "rrcs")
_COMBINES = ("rrc", "rrs", "rrcs", "re")
_KINDS = {*_SENDS, *_RECEIVES, *_COMBINES, "cpy", "nop"}


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockStep:
    """One step of one thread block."""

    rank: int
    block: int
    number: int
    kind: str
    """s, r, rcs, rrc, rrs, rrcs, cpy, re or nop, as MSCCL calls them."""
    src: tuple[str, int]
    dst: tuple[str, int]
    count: int
    send: int = -1
    recv: int = -1
    channel: int = 0
    after: tuple[int, int] = (-1, -1)
    """The block and step of the same rank that come first."""


def assemble(
    *,
    name: str,
    collective: str,
    num_ranks: int,
    chunks: int,
    in_place: bool,
    root: int,
    steps: Sequence[BlockStep],
) -> Program:
    """Return the program; `chunks` is how many the full vector has."""
    for step in steps:
        if step.kind not in _KINDS:
            raise ParseError(
                f"gpu {step.rank}, tb {step.block}, step {step.number}: type"
                f" {step.kind!r}; want one of {', '.join(sorted(_KINDS))}"
            )
    places = BufferNames(collective, num_ranks, chunks, in_place=in_place, root=root)
    run = _Run(places)
    run.all(steps)
    return places.program(name, run.ops)


class BufferNames:
    """What foreign buffers are called here: letters i, o and s, offsets in chunks."""

    def __init__(
        self, collective: str, num_ranks: int, chunks: int, *, in_place: bool, root: int
    ) -> None:
        whole = chunks
        if collective == "broadcast" or chunks % num_ranks:
            whole = math.lcm(num_ranks, max(1, chunks))
        if whole > MOST_CHUNKS:
            raise ParseError(
                f"{chunks} chunks of {num_ranks} ranks are {whole} to follow; want at "
                f"most {MOST_CHUNKS}"
            )
        self.collective, self.num_ranks, self.root = collective, num_ranks, root
        self.split = whole // num_ranks
        self.scratch: dict[str, int] = {}
        self._whole, self._width = whole, whole // max(1, chunks)
        self._in_place = in_place

    def begin(self) -> Iterator[Op]:
        """Yield what makes input and output one buffer, for files made in place."""
        if not self._in_place:
            return
        k, whole = self.split, self._whole
        for r in range(self.num_ranks):
            if self.collective == "all_gather":
                mine = Ref(r, OUTPUT, r * k, r * k + k)
                yield Op(mine, (Ref(r, INPUT, 0, k),))
            elif self.collective == "reduce_scatter":
                self.scratch["vector"] = whole
                yield Op(Ref(r, "vector", 0, whole), (Ref(r, INPUT, 0, whole),))
            elif self.collective != "broadcast" or r == self.root:
                yield Op(Ref(r, OUTPUT, 0, whole), (Ref(r, INPUT, 0, whole),))

    def end(self) -> Iterator[Op]:
        """Yield what brings a result in place to where the output is."""
        if self._in_place and self.collective == "reduce_scatter":
            k = self.split
            for r in range(self.num_ranks):
                mine = Ref(r, "vector", r * k, r * k + k)
                yield Op(Ref(r, OUTPUT, 0, k), (mine,))

    def ref(self, rank: int, letter: str, offset: int, count: int, where: str) -> Ref:
        """Return what a buffer letter and an offset name."""
        low = offset * self._width
        high = low + max(1, count) * self._width
        if high > MOST_CHUNKS:
            raise ParseError(f"{where}: chunk {high}; want at most {MOST_CHUNKS}")
        if letter == "s":
            self.scratch["scratch"] = max(self.scratch.get("scratch", 0), high)
            return Ref(rank, "scratch", low, high)
        if letter not in ("i", "o"):
            raise ParseError(f"{where}: buffer {letter!r}; want i, o or s")
        if not self._in_place:
            return Ref(rank, INPUT if letter == "i" else OUTPUT, low, high)
        k = self.split
        if self.collective == "all_gather" and letter == "i":
            return Ref(rank, OUTPUT, rank * k + low, rank * k + high)
        if self.collective == "reduce_scatter":
            shift = rank * k if letter == "o" else 0
            return Ref(rank, "vector", shift + low, shift + high)
        return Ref(rank, OUTPUT, low, high)

    def program(self, name: str, ops: Sequence[Op]) -> Program:
        """Return the program of these operations."""
        for op in ops:
            if any(ref.start < 0 for ref in (op.dst, *op.srcs)):
                raise ParseError(f"{op.dst}: an offset below 0 is of no chunk")
        params: Params = freeze(
            {"root": self.root} if self.collective == "broadcast" else {}
        )
        return Program(
            name=f"{self.collective}/{'_'.join(name.split()) or 'imported'}",
            collective=self.collective,
            num_ranks=self.num_ranks,
            split=self.split,
            params=params,
            scratch=dict(sorted(self.scratch.items())),
            ops=(*self.begin(), *ops, *self.end()),
        )


class _Run:
    """The state while blocks take turns."""

    def __init__(self, places: BufferNames) -> None:
        self._places = places
        self.ops: list[Op] = []
        self._mail: dict[tuple[int, int, int], deque[list[Ref]]] = defaultdict(deque)
        self._aside: dict[int, int] = defaultdict(int)

    def all(self, steps: Sequence[BlockStep]) -> None:
        """Run every block to its end, or say which wait for ever."""
        blocks: dict[tuple[int, int], deque[BlockStep]] = defaultdict(deque)
        for step in sorted(steps, key=lambda s: (s.rank, s.block, s.number)):
            blocks[step.rank, step.block].append(step)
        done: dict[tuple[int, int], int] = dict.fromkeys(blocks, -1)
        moved = True
        while moved:
            moved = False
            for key, left in blocks.items():
                while left and self._ready(left[0], done):
                    step = left.popleft()
                    self._step(step)
                    done[key] = step.number
                    moved = True
        if stuck := [s[0] for s in blocks.values() if s]:
            first = stuck[0]
            raise ParseError(
                f"gpu {first.rank}, tb {first.block}, step {first.number} waits for"
                f" ever ({len(stuck)} blocks do); want sends and receives that match"
            )

    def _ready(self, step: BlockStep, done: dict[tuple[int, int], int]) -> bool:
        block, number = step.after
        if block >= 0 and done.get((step.rank, block), -1) < number:
            return False
        if step.kind in _RECEIVES:
            return bool(self._mail[step.recv, step.rank, step.channel])
        return True

    def _step(self, step: BlockStep) -> None:
        src, dst = self._ref(step, step.src), self._ref(step, step.dst)
        if step.kind == "nop":
            return
        held = [src]
        if step.kind in _RECEIVES:
            came = self._mail[step.recv, step.rank, step.channel].popleft()
            held = [src, *came] if step.kind in _COMBINES else came
            if step.kind != "rrs":
                self._write(dst, held)
                held = [dst]
        elif step.kind == "cpy":
            self._write(dst, [src])
        elif step.kind == "re":
            self._write(dst, [dst, src])
        if step.kind in _SENDS:
            self._mail[step.rank, step.send, step.channel].append(held)

    def _write(self, dst: Ref, srcs: list[Ref]) -> None:
        """Assign; what is on its way from that place is set aside first."""
        if srcs == [dst]:
            return
        for queue in self._mail.values():
            for i, held in enumerate(queue):
                if any(_meet(ref, dst) for ref in held):
                    queue[i] = [self._set_aside(held)]
        self.ops.append(Op(dst, tuple(srcs)))

    def _set_aside(self, held: list[Ref]) -> Ref:
        rank, width = held[0].rank, held[0].stop - held[0].start
        at = self._aside[rank]
        self._aside[rank] += width
        scratch = self._places.scratch
        scratch["aside"] = max(scratch.get("aside", 0), at + width)
        copy = Ref(rank, "aside", at, at + width)
        self.ops.append(Op(copy, tuple(held)))
        return copy

    def _ref(self, step: BlockStep, place: tuple[str, int]) -> Ref:
        where = f"gpu {step.rank}, tb {step.block}, step {step.number}"
        return self._places.ref(step.rank, *place, step.count, where)


def _meet(a: Ref, b: Ref) -> bool:
    same = (a.rank, a.buffer) == (b.rank, b.buffer)
    return same and a.start < b.stop and b.start < a.stop
