"""The same program with its ranks numbered otherwise: what moves is what moved.

Two uses. A machine where a ring had better go round another way: any algorithm, its
ranks in an `order`. And a program among members of whom the others are gone: the
members `alone`, numbered from 0.

A rank's part belongs to it. So where an output holds one part for each rank, the parts
change places with the ranks, and what was one range of chunks may become several: one
operation for each. Which parts a buffer holds, its collective says. What comes out is a
program like any other, and proved like any other: nothing here is trusted.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from stretto.errors import CallError, ProgramError, RanksError
from stretto.program import collectives
from stretto.program.collectives import Collective, Shape, SymbolRun
from stretto.program.ir import (
    INPUT,
    OUTPUT,
    Op,
    Params,
    Program,
    Ref,
    freeze,
    members_of,
)
from stretto.program.lang.algorithm import Algorithm

Places: TypeAlias = Mapping[int, int]
"""The new number of each rank; who is not in it is gone."""


def renumbered(program: Program, places: Places) -> Program:
    """Return a program whose ranks have these numbers, 0 to one less than there are."""
    n = len(places)
    members = members_of(program.num_ranks, program.params)
    among = sorted(places[m] for m in members if m in places)
    params = {k: v for k, v in program.params.items() if k != "members"}
    if len(among) < n:
        params["members"] = tuple(among)
    shape = Shape(
        num_ranks=n, split=program.split, params=freeze(_said(params, places))
    )
    moved = _chunks_moved(program, shape, places)

    def ranges(ref: Ref) -> NDArray[np.int64]:
        if ref.rank not in places:
            raise ProgramError(
                f"{program.name}: {ref} is of no member: rank {ref.rank} is gone, and "
                f"passes nothing on; want a program of {tuple(places)} alone"
            )
        return moved(ref)

    ops = tuple(
        one for op in program.ops for one in _pieces(op, places, _cuts(op, ranges))
    )
    return replace(program, num_ranks=n, params=shape.params, ops=ops, by_hand=None)


def _said(params: Params, places: Places) -> dict[str, object]:
    """Return parameters of a program with the ranks in them renumbered."""
    said = dict(params)
    if isinstance(root := said.get("root"), int):
        said["root"] = places.get(root, root)
    if isinstance(hosts := said.get("hosts"), tuple) and len(hosts) == len(places):
        said["hosts"] = tuple(hosts[r] for r in sorted(places, key=places.__getitem__))
    if isinstance(pairs := said.get("pairs"), tuple):
        said["pairs"] = tuple(tuple(places.get(r, r) for r in pair) for pair in pairs)
    return said


def _chunks_moved(
    program: Program, shape: Shape, places: Places
) -> Callable[[Ref], NDArray[np.int64]]:
    """Return what says where the chunks of a range of the program have come to be."""
    kind, old = collectives.get(program.collective), Shape.of(program)
    if len(old.members) != len(shape.members):
        gone = tuple(r for r in old.members if r not in places)
        raise ProgramError(f"{program.name}: ranks {gone} are members, and are gone")
    symbols = _symbols_moved(kind, old, shape, places)
    in_place = bool((symbols == np.arange(len(symbols))).all())

    @functools.cache
    def table(rank: int, buffer: str) -> NDArray[np.int64] | None:
        if buffer not in (INPUT, OUTPUT):  # any chunk of scratch is as good as another
            whole = program.scratch.get(buffer) == len(symbols)
            return symbols if whole else None
        runs = kind.input_runs if buffer == INPUT else kind.output_runs
        now = symbols[_symbols(runs(old, rank))]
        return _at(_symbols(runs(shape, places[rank])), now)

    def moved(ref: Ref) -> NDArray[np.int64]:
        found = None if in_place else table(ref.rank, ref.buffer)
        if found is None or ref.stop > len(found):
            return np.arange(ref.start, ref.stop)
        return found[ref.start : ref.stop]

    return moved


def _symbols_moved(
    kind: Collective, old: Shape, new: Shape, places: Places
) -> NDArray[np.int64]:
    """Return the new symbol of each: a vector's stay, those of a part go with it."""
    parts, each = kind.num_parts(old), kind.chunks_per_part(old)
    to = np.array([new.place(places[m]) for m in old.members])
    if parts == len(to) > 1:
        start = to
    elif parts == len(to) ** 2 > 1:
        start = (to[:, None] * len(to) + to).ravel()
    else:
        start = np.arange(parts)
    return (start[:, None] * each + np.arange(each)).ravel()


def _symbols(runs: Sequence[SymbolRun]) -> NDArray[np.int64]:
    found = [np.arange(run.first, run.first + run.stop - run.start) for run in runs]
    return np.concatenate(found) if found else np.zeros(0, np.int64)


def _at(held: NDArray[np.int64], wanted: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return where in a buffer of these symbols the wanted ones are."""
    order = np.argsort(held)
    return order[np.searchsorted(held[order], wanted)]


def _cuts(
    op: Op, ranges: Callable[[Ref], NDArray[np.int64]]
) -> Iterator[tuple[list[int], int]]:
    """Yield where each reference of an operation begins, and how far all go on."""
    rows = np.stack([ranges(ref) for ref in (op.dst, *op.srcs)])
    breaks = np.flatnonzero((np.diff(rows, axis=1) != 1).any(axis=0)) + 1
    starts = [0, *breaks.tolist(), rows.shape[1]]
    for at, stop in itertools.pairwise(starts):
        yield rows[:, at].tolist(), stop - at


def _pieces(
    op: Op, places: Places, cuts: Iterator[tuple[list[int], int]]
) -> Iterator[Op]:
    """Yield an operation as one for each range that is still one."""
    for (first, *others), length in cuts:
        dst, *srcs = (
            Ref(places[ref.rank], ref.buffer, at, at + length)
            for ref, at in zip((op.dst, *op.srcs), (first, *others), strict=True)
        )
        yield op._replace(dst=dst, srcs=tuple(srcs))


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class RenumberedAlgorithm(Algorithm):
    """An algorithm whose programs are those of another, renumbered."""

    whole: Algorithm
    all_ranks: int
    """Of how many ranks the other's programs are."""
    places: Places
    keeps_ways: bool
    """Whether each rank stays where it is on its machine, and is only called
    otherwise."""

    @property
    def root(self) -> int:
        """Return the root where nobody names one: the other's, as it is called now."""
        return self.places.get(self.whole.root, self.whole.root)

    def build(
        self, num_ranks: int, *, split: int | None = None, **params: object
    ) -> Program:
        """Return the other's program, renumbered."""
        if reason := self.refuses(num_ranks):
            raise RanksError(reason)
        ranks = {place: rank for rank, place in self.places.items()}
        found = self.whole.build(self.all_ranks, split=split, **_said(params, ranks))
        if not self.keeps_ways and any(op.via for op in found.ops):
            raise ProgramError(
                f"{self.name}: its data take ways by name, which are those of ranks "
                f"as they were; want {self.whole.name}"
            )
        return replace(renumbered(found, self.places), name=self.name)


@functools.lru_cache(maxsize=256)
def alone(one: Algorithm, num_ranks: int) -> Algorithm:
    """Return an algorithm among some of so many ranks as one of these alone."""
    places = {rank: place for place, rank in enumerate(one.members)}
    n = len(places)

    def only_them(given: int) -> str | None:
        return None if given == n else f"{given} ranks; its members are {n}"

    return _renumbered(one, one.name, only_them, num_ranks, places, keeps_ways=True)


@functools.lru_cache(maxsize=1024)
def ordered(one: Algorithm, order: tuple[int, ...]) -> Algorithm:
    """Return an algorithm with rank `order[i]` where it has rank i.

    Its name says so, and can be asked for: `all_reduce/ring:0-1-3-2`.
    """
    n = len(order)
    if sorted(order) != list(range(n)):
        raise CallError(
            f"{one.name} in the order {order}: want each rank from 0 to {n - 1} once"
        )
    if one.members or one.kernel is not None:
        what = "members" if one.members else "a kernel by hand"
        raise CallError(f"{one.name} has {what}, which take no other order")

    def as_many(given: int) -> str | None:
        if given != n:
            return f"{given} ranks; its order has {n}"
        return one.requires(n) if one.requires else None

    name = f"{one.name}:{'-'.join(map(str, order))}"
    return _renumbered(one, name, as_many, n, dict(enumerate(order)), keeps_ways=False)


def _renumbered(
    one: Algorithm,
    name: str,
    requires: Callable[[int], str | None],
    all_ranks: int,
    places: Places,
    *,
    keeps_ways: bool,
) -> Algorithm:
    return RenumberedAlgorithm(
        name,
        one.function,
        one.split,
        requires,
        one.schedule,
        whole=one,
        all_ranks=all_ranks,
        places=places,
        keeps_ways=keeps_ways,
    )
