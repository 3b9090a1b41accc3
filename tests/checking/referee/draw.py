"""Random programs that are right by how they are made: other routes, trees and cuts.

Every value has places that hold it. A program grows by moving some value from one of
its places to another, through relays now and then, until every output has what its
collective promises. Neighbouring chunks are moved together, or cut, as chance has it.
Scratch is used again once its value is not needed.

Legend: q source rank, r target rank, w relay, c chunk, m chunks moved together.
"""

from __future__ import annotations

import random
from typing import NamedTuple

from stretto.program import collectives
from stretto.program.collectives import Shape
from stretto.program.ir import INPUT, OUTPUT, Op, Program, Ref, freeze

__all__ = ["draw_program"]

_SCRATCH = "s"
_COPYING = ("all_gather", "all_to_all", "broadcast", "gather", "permute", "scatter")
_REDUCING = ("all_reduce", "reduce", "reduce_scatter")


class _Wanted(NamedTuple):
    """Chunks of a rank's output, and what they are made of: chunks from `chunk` on."""

    rank: int
    start: int
    stop: int
    chunk: int
    sources: tuple[int, ...]


def draw_program(rng: random.Random, num_ranks: int, collective: str = "") -> Program:
    """Return a random right program of a collective, or of any."""
    name = collective or rng.choice(_COPYING + _REDUCING)
    kind = collectives.get(name)
    shape = Shape(
        num_ranks=num_ranks,
        split=rng.choice((1, 1, 2, 3)),
        params=freeze(_params(rng, name, num_ranks)),
    )
    wanted = []
    for rank in range(num_ranks):
        for need in kind.promise(shape, rank):
            sources = tuple(q for q in range(num_ranks) if need.ranks >> q & 1)
            whole = _Wanted(rank, need.start, need.stop, need.chunk, sources)
            wanted += _cut(rng, whole)
    rng.shuffle(wanted)
    drawing = _Drawing(rng, num_ranks, reduces=kind.reduces)
    for one in wanted:
        drawing.bring(one)
    return Program(
        name=f"drawn/{name}",
        collective=name,
        num_ranks=num_ranks,
        split=shape.split,
        params=shape.params,
        scratch={_SCRATCH: drawing.scratch} if drawing.scratch else {},
        ops=tuple(drawing.ops),
    )


def _params(rng: random.Random, name: str, n: int) -> dict[str, object]:
    params: dict[str, object] = {}
    if name == "permute":
        targets = list(range(n))
        rng.shuffle(targets)
        pairs = list(enumerate(targets))
        return {"pairs": tuple(sorted(rng.sample(pairs, rng.randint(1, n))))}
    members = tuple(range(n))
    if n > 1 and rng.random() < 0.25:
        members = tuple(sorted(rng.sample(range(n), rng.randint(1, n - 1))))
        params["members"] = members
    if collectives.get(name).rooted:
        params["root"] = rng.choice(members)
    return params


def _cut(rng: random.Random, whole: _Wanted) -> list[_Wanted]:
    """Return the same in pieces: chunks that will be moved together."""
    pieces, at = [], whole.start
    while at < whole.stop:
        stop = min(whole.stop, at + rng.choice((1, 1, 2, 3, 4)))
        chunk = whole.chunk + at - whole.start
        pieces.append(whole._replace(start=at, stop=stop, chunk=chunk))
        at = stop
    return pieces


class _Drawing:
    """The operations so far, and who holds what."""

    def __init__(self, rng: random.Random, num_ranks: int, *, reduces: bool) -> None:
        self.rng, self.num_ranks, self.reduces = rng, num_ranks, reduces
        self.ops: list[Op] = []
        self.scratch = 0
        self.held: dict[object, list[Ref]] = {}
        """Places of a value: chunks from c of q, or of all, so many of them."""
        self.free: dict[tuple[object, int], list[Ref]] = {}
        """Scratch to be used again, by the chunks that it held: it has their size."""
        self.sliding = rng.random() < 0.5
        """Whether scratch is used again."""
        self.phased = rng.random() < 0.3

    def bring(self, one: _Wanted) -> None:
        """Let an output have what it wants."""
        dst = Ref(one.rank, OUTPUT, one.start, one.stop)
        width = one.stop - one.start
        value = (one.sources, one.chunk, width)
        places = self.held.setdefault(value, [])
        if not places and len(one.sources) == 1:
            first = Ref(one.sources[0], INPUT, one.chunk, one.chunk + width)
            places.append(first)
        if places and (len(one.sources) == 1 or self.rng.random() < 0.7):
            src = self.rng.choice(places)
            while self.rng.random() < 0.25:
                slot = self._slot(one.chunk, width)
                self._op(slot, (src,))
                places.append(slot)
                src = slot
            self._op(dst, (src,))
        else:
            self._sum(dst, one, width)
        places.append(dst)
        if self.sliding:
            self._release(places, one.chunk, width)

    def _sum(self, dst: Ref, one: _Wanted, width: int) -> None:
        """Add up all inputs in a random tree, the last sum in the output."""
        parts = [Ref(q, INPUT, one.chunk, one.chunk + width) for q in one.sources]
        if self.rng.random() < 0.5:
            self.rng.shuffle(parts)
        used: list[Ref] = []
        while len(parts) > 1:
            many = min(len(parts), self.rng.choice((2, 2, 2, 3, 4)))
            first = self.rng.randint(0, len(parts) - many)
            srcs = tuple(parts[first : first + many])
            last = many == len(parts)
            mine = srcs[0] if srcs[0].buffer == _SCRATCH else None
            if last:
                to = dst
            elif mine and self.rng.random() < 0.6:
                to = mine
            else:
                to = self._slot(one.chunk, width)
                used.append(to)
            self._op(to, srcs)
            parts[first : first + many] = [to]
        if parts != [dst]:
            self._op(dst, (parts[0],))
        if self.sliding:
            for slot in used:
                self.free.setdefault((one.chunk, width), []).append(slot)

    def _slot(self, chunk: int, width: int) -> Ref:
        """Return room for some chunks, on any rank."""
        again = self.free.get((chunk, width))
        if again and self.rng.random() < 0.7:
            return again.pop(self.rng.randrange(len(again)))
        start = self.scratch
        self.scratch += width
        return Ref(self.rng.randrange(self.num_ranks), _SCRATCH, start, start + width)

    def _release(self, places: list[Ref], chunk: int, width: int) -> None:
        for place in [p for p in places if p.buffer == _SCRATCH]:
            if self.reduces and self.rng.random() < 0.3:
                places.remove(place)
                self.free.setdefault((chunk, width), []).append(place)

    def _op(self, dst: Ref, srcs: tuple[Ref, ...]) -> None:
        phase = self.rng.choice(("one", "two", "")) if self.phased else ""
        self.ops.append(Op(dst, srcs, phase))
