"""From thread blocks that send and receive to a program read line by line.

A foreign schedule says what every block does, in order; sends and receives of a pair of
ranks on a channel match first in, first out. Here the blocks run as far as they can, in
turn, and every transfer becomes one assignment. Data sent before they are received are
remembered where they lie; only if that place is overwritten first are they set aside.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass

from stretto.errors import ParseError
from stretto.ir import INPUT, OUTPUT, Op, Params, Program, Ref, freeze

__all__ = ["Step", "assemble"]

_SENDS = ("s", "rcs", "rrs", "rrcs")
_RECEIVES = ("r", "rcs", "rrc", "rrs", "rrcs")
_COMBINES = ("rrc", "rrs", "rrcs", "re")
_KINDS = {*_SENDS, *_RECEIVES, *_COMBINES, "cpy", "nop"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
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
    steps: Sequence[Step],
) -> Program:
    """Return the program; `chunks` is how many the full vector has."""
    for step in steps:
        if step.kind not in _KINDS:
            raise ParseError(
                f"gpu {step.rank}, tb {step.block}, step {step.number}: type"
                f" {step.kind!r}; want one of {', '.join(sorted(_KINDS))}"
            )
    if collective == "broadcast" or chunks % num_ranks:
        whole = math.lcm(num_ranks, max(1, chunks))
    else:
        whole = chunks
    run = _Run(collective, num_ranks, whole, whole // max(1, chunks), in_place, root)
    run.all(steps)
    params: Params = freeze({"root": root} if collective == "broadcast" else {})
    return Program(
        name=f"{collective}/{name}",
        collective=collective,
        num_ranks=num_ranks,
        split=whole // num_ranks,
        params=params,
        scratch=run.scratch,
        ops=tuple(run.ops),
    )


class _Run:
    """The state while blocks take turns."""

    def __init__(
        self,
        collective: str,
        num_ranks: int,
        whole: int,
        width: int,
        in_place: bool,
        root: int,
    ) -> None:
        self._collective, self._num_ranks = collective, num_ranks
        self._whole, self._width = whole, width
        self._in_place, self._root = in_place, root
        self.ops: list[Op] = []
        self.scratch: dict[str, int] = {}
        self._mail: dict[tuple[int, int, int], deque[list[Ref]]] = defaultdict(deque)
        self._aside: dict[int, int] = defaultdict(int)

    def all(self, steps: Sequence[Step]) -> None:
        """Run every block to its end, or say which wait for ever."""
        blocks: dict[tuple[int, int], deque[Step]] = defaultdict(deque)
        for step in sorted(steps, key=lambda s: (s.rank, s.block, s.number)):
            blocks[step.rank, step.block].append(step)
        done: dict[tuple[int, int], int] = dict.fromkeys(blocks, -1)
        self._begin()
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

    def _begin(self) -> None:
        """In place, input and output are one buffer: make that so."""
        if not self._in_place:
            return
        k = self._whole // self._num_ranks
        for r in range(self._num_ranks):
            if self._collective == "all_gather":
                here = Ref(r, OUTPUT, r * k, r * k + k)
                self.ops.append(Op(here, (Ref(r, INPUT, 0, k),)))
            elif self._collective == "reduce_scatter":
                self.scratch["vector"] = self._whole
                here = Ref(r, "vector", 0, self._whole)
                self.ops.append(Op(here, (Ref(r, INPUT, 0, self._whole),)))
            elif self._collective != "broadcast" or r == self._root:
                here = Ref(r, OUTPUT, 0, self._whole)
                self.ops.append(Op(here, (Ref(r, INPUT, 0, self._whole),)))

    def _ready(self, step: Step, done: dict[tuple[int, int], int]) -> bool:
        block, number = step.after
        if block >= 0 and done.get((step.rank, block), -1) < number:
            return False
        if step.kind in _RECEIVES:
            return bool(self._mail[step.recv, step.rank, step.channel])
        return True

    def _step(self, step: Step) -> None:
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
        self.scratch["aside"] = max(self.scratch.get("aside", 0), at + width)
        copy = Ref(rank, "aside", at, at + width)
        self.ops.append(Op(copy, tuple(held)))
        return copy

    def _ref(self, step: Step, place: tuple[str, int]) -> Ref:
        """Return what a buffer letter and an offset name."""
        letter, offset = place
        low = offset * self._width
        high = low + max(1, step.count) * self._width
        if letter == "s":
            self.scratch["scratch"] = max(self.scratch.get("scratch", 0), high)
            return Ref(step.rank, "scratch", low, high)
        if letter not in ("i", "o"):
            raise ParseError(
                f"gpu {step.rank}, tb {step.block}, step {step.number}: buffer"
                f" {letter!r}; want i, o or s"
            )
        if not self._in_place:
            return Ref(step.rank, INPUT if letter == "i" else OUTPUT, low, high)
        k = self._whole // self._num_ranks
        if self._collective == "all_gather" and letter == "i":
            return Ref(step.rank, OUTPUT, step.rank * k + low, step.rank * k + high)
        if self._collective == "reduce_scatter":
            shift = step.rank * k if letter == "o" else 0
            return Ref(step.rank, "vector", shift + low, shift + high)
        return Ref(step.rank, OUTPUT, low, high)


def _meet(a: Ref, b: Ref) -> bool:
    same = (a.rank, a.buffer) == (b.rank, b.buffer)
    return same and a.start < b.stop and b.start < a.stop
