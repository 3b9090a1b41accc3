"""Time a program as it is written: links serve its transfers in the order of its lines.

A transfer takes every link on its way for its bytes over the link's rate, all from the
same moment, cut through the switches; it arrives what the slowest link takes later,
and the latencies. It starts when its data are there, and when the links have served
what stands before it. It goes the way that the line says (`via`), else the machine's
own; ranks that relay on the machine's own way store and forward. What ranks do in
their own memory costs nothing here: this is the model of links in which synthesis
promises, read off the program alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from stretto.errors import CallError, TopologyError
from stretto.program import collectives
from stretto.program.collectives import Shape
from stretto.program.ir import INPUT, Op, Program, Ref, Verified, Via
from stretto.topology import Machine

__all__ = ["Written", "written"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What happened."""

    time_us: float
    busy_us: tuple[float, ...]
    """How long every link of the machine was occupied."""
    num_transfers: int


def written(
    program: Verified[Program],
    machine: Machine,
    *,
    nbytes: int,
    itemsize: int = 1,
    counts: Sequence[int] | None = None,
    ranks: Sequence[int] = (),
) -> Written:
    """Return the time of a program in its own order, all ranks entering at time 0.

    `nbytes`, `counts` and `ranks` are those of `simulate`. Parts are not rounded to
    whole elements unless `counts` say so.
    """
    p = program.value
    at = tuple(ranks) or tuple(range(p.num_ranks))
    if len(at) != p.num_ranks or len(set(at)) != len(at):
        raise CallError(f"{p.name}: {len(at)} places; want {p.num_ranks}, each once")
    if wrong := [r for r in at if not 0 <= r < machine.num_ranks]:
        raise CallError(
            f"{p.name} on rank {wrong[0]} of {machine.name}; it has 0 to"
            f" {machine.num_ranks - 1}"
        )
    walk = _Walk(p, machine, at)
    walk.enter(nbytes, itemsize, counts)
    for op in p.ops:
        walk.do(op)
    return Written(
        time_us=walk.last,
        busy_us=tuple(walk.busy),
        num_transfers=walk.transfers,
    )


class _Chunks:
    """Of one buffer of one rank: since when chunks are there, and their bytes."""

    __slots__ = ("nbytes", "read", "ready")

    def __init__(self, size: int) -> None:
        self.ready = [0.0] * size
        self.read = [0.0] * size
        """Until when what lies there is being sent."""
        self.nbytes = [0.0] * size


class _Walk:
    def __init__(self, program: Program, machine: Machine, at: Sequence[int]) -> None:
        self._program, self._machine, self._at = program, machine, at
        self._rate = [k.bandwidth_gbytes_per_s * 1e3 for k in machine.links]
        self._latency = [k.latency_us for k in machine.links]
        self._free = [0.0] * len(machine.links)
        self.busy = [0.0] * len(machine.links)
        self.last, self.transfers = 0.0, 0
        self._held: dict[tuple[int, str], _Chunks] = {}
        self._ways: dict[tuple[int, int, Via | None], tuple[tuple[int, ...], ...]] = {}
        self._link = {
            (machine.node_name(k.src), machine.node_name(k.dst)): e
            for e, k in enumerate(machine.links)
        }

    def enter(self, nbytes: int, itemsize: int, counts: Sequence[int] | None) -> None:
        """Give every rank its input."""
        p = self._program
        kind = collectives.get(p.collective)
        shape = Shape(num_ranks=p.num_ranks, split=p.split, params=p.params)
        if counts is None:
            ones = kind.equal_counts(shape, nbytes=1 << 40, itemsize=1)
            factor = nbytes / (1 << 40) if nbytes else 0.0
            # parts of 2^40 bytes that are divided again: as good as not rounded
            counts, itemsize = ones, 1
        else:
            factor = 1.0
        sizes = kind.symbol_sizes(shape, np.asarray(counts, dtype=np.int64), itemsize)
        exact = (np.asarray(sizes, dtype=float) * (itemsize * factor)).tolist()
        for r in range(p.num_ranks):
            runs = kind.input_runs(shape, r)
            if runs:
                chunks = self._buffer(r, INPUT, runs[-1].stop)
                for start, stop, first in runs:
                    chunks.nbytes[start:stop] = exact[first : first + stop - start]

    def _buffer(self, rank: int, name: str, stop: int) -> _Chunks:
        chunks = self._held.get((rank, name))
        if chunks is None:
            chunks = self._held[rank, name] = _Chunks(stop)
        if (more := stop - len(chunks.ready)) > 0:
            for values in (chunks.ready, chunks.read, chunks.nbytes):
                values += [0.0] * more
        return chunks

    def do(self, op: Op) -> None:
        """Do one assignment."""
        dst = op.dst
        width = dst.stop - dst.start
        mine = self._buffer(dst.rank, dst.buffer, dst.stop)
        ready, sizes = [0.0] * width, [0.0] * width
        for src, via in zip(op.srcs, op.via or (None,) * len(op.srcs), strict=True):
            theirs = self._buffer(src.rank, src.buffer, src.stop)
            part = slice(src.start, src.stop)
            sizes = theirs.nbytes[part]
            if src.rank == dst.rank:
                ready = list(map(max, ready, theirs.ready[part]))
                continue
            since = max(theirs.ready[part])
            arrives = self._carry(src, dst, via, sum(sizes), since)
            theirs.read[part] = [max(t, arrives) for t in theirs.read[part]]
            ready = [max(t, arrives) for t in ready]
        where = slice(dst.start, dst.stop)
        ready = list(map(max, ready, mine.read[where]))
        mine.ready[where], mine.nbytes[where] = ready, sizes
        mine.read[where] = [0.0] * width
        self.last = max(self.last, *ready)

    def _carry(
        self, src: Ref, dst: Ref, via: Via | None, nbytes: float, since: float
    ) -> float:
        """Occupy the links of a way; return when the data arrive."""
        key = (src.rank, dst.rank, via)
        if key not in self._ways:
            self._ways[key] = tuple(self._way(*key))
        for links in self._ways[key]:
            start = max(since, *(self._free[e] for e in links))
            longest = 0.0
            for e in links:
                took = nbytes / self._rate[e]
                self._free[e] = start + took
                self.busy[e] += took
                longest = max(longest, took)
            since = start + longest + sum(self._latency[e] for e in links)
            self.transfers += 1
        return since

    def _way(self, src: int, dst: int, via: Via | None) -> Iterator[tuple[int, ...]]:
        """Yield the links from rank to rank; one part for every rank that relays."""
        machine = self._machine
        here, there = self._at[src], self._at[dst]
        if via is not None:
            stops = [str(here), *via, str(there)]
            links = []
            for a, b in pairwise(stops):
                e = self._link.get((a, b))
                if e is None or not self._rate[e]:
                    raise TopologyError(
                        f"{self._program.name}: rank {here} to {there} via"
                        f" {'>'.join(via) or '-'}: {machine.name} has no link from {a}"
                        f" to {b} that works"
                    )
                links.append(e)
            yield tuple(links)
            return
        part: list[int] = []
        for e in machine.route(here, there).links:
            part.append(e)
            if machine.links[e].dst < machine.num_ranks:
                yield tuple(part)
                part = []
