"""From steps to flows: which rank sent how much to which, from when to when.

A step names its peer where it has one. Of a step with several the plan knows whom: it
is made again from the algorithm and schedule that the recording names, and believed if
its digest is the recorded one. What stays unknown is counted, not guessed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stretto.compiler.lower import lower
from stretto.compiler.plan import Move, Plan, Schedule
from stretto.compiler.verify import verify, verify_plan
from stretto.errors import StrettoError
from stretto.program import algorithms
from stretto.program.ir import Program
from stretto.studio.analysis.index import Index
from stretto.trace import NOBODY, STEP_KINDS, CallKind

_BLOCK = 1 << 20
"""Steps that are looked at together: the memory that is taken does not grow."""
_MOST_RANKS = 64
"""Plans of more ranks take seconds to make again."""
_NUMBERS = {name: number for number, name in enumerate(STEP_KINDS)}
_PULLED = frozenset({"get"})
_PUSHED = frozenset({"put", "put_packets", "reduce_packets", "hop_put", "transfer"})
_EITHER = frozenset({"reduce", "copy"})
"""Whose direction the schedule says: what pulls reads its peer, what pushes writes."""


class FlowTable(NamedTuple):
    """Some flows, column by column; microseconds; ranks by their place in `world`."""

    src: NDArray[np.int64]
    dst: NDArray[np.int64]
    begin: NDArray[np.float64]
    end: NDArray[np.float64]
    nbytes: NDArray[np.float64]
    step: NDArray[np.int64]
    """The row of the recording's steps."""
    unknown_nbytes: float = 0.0
    """Of steps with several peers, whose plan is not known."""


class Plans:
    """Plans of a recording, made again when asked for; None: it cannot be.

    The user's own `program` is among those that are tried.
    """

    def __init__(self, program: Program | None = None) -> None:
        self.program = program
        self._found: dict[tuple[CallKind, int], Plan | None] = {}

    def of(self, kind: CallKind, num_ranks: int) -> Plan | None:
        """Return the plan of a kind of call, exactly the one that was recorded."""
        key = (kind, num_ranks)
        if key not in self._found:
            self._found[key] = self._make(kind, num_ranks)
        return self._found[key]

    def _make(self, kind: CallKind, num_ranks: int) -> Plan | None:
        if not kind.algorithm or num_ranks > _MOST_RANKS:
            return None
        mine = self.program
        try:
            if mine is not None and (mine.name, mine.num_ranks) == (
                kind.algorithm,
                num_ranks,
            ):
                program = mine
            else:
                program = algorithms.get(kind.algorithm).build(num_ranks)
            proved = verify(program)
            schedule = Schedule.parse(kind.schedule)
            for in_place in (False, True):
                lowered = lower(proved, schedule, in_place=in_place)
                plan = verify_plan(lowered, proved).value
                if plan.digest == kind.plan:
                    return plan
        except StrettoError:
            return None
        return None


def joined(parts: Sequence[FlowTable]) -> FlowTable:
    """Return several flows as one; there is at least one part."""
    *columns, unknown = zip(*parts, strict=True)
    return FlowTable._make([*map(np.concatenate, columns), sum(unknown)])


def targets_of(rank: int, move: Move) -> list[tuple[int, int]]:
    """Return from which rank to which a move of a rank carries its data."""
    from_others = {(src.rank, rank) for src in move.srcs if src.rank != rank}
    to_others = {(rank, dst.rank) for dst in move.dsts if dst.rank != rank}
    return sorted(from_others | to_others)


def flows_of(
    index: Index, plans: Plans, rows: NDArray[np.int64] | None = None
) -> Iterator[FlowTable]:
    """Yield the flows of some steps, or of all, in blocks."""
    table = index.steps
    resolver = _Resolver(index, plans)
    many = len(table) if rows is None else len(rows)
    wire_only = _has(table, rows, "transfer")
    for at in range(0, many, _BLOCK):
        stop = min(at + _BLOCK, many)
        if rows is None:
            some, places = table[at:stop], np.arange(at, stop)
        else:
            places = rows[at:stop]
            some = table[places]
        yield resolver.flows(some, places, wire_only=wire_only)


def _has(table: NDArray[Any], rows: NDArray[np.int64] | None, name: str) -> bool:
    kinds = table["kind"] if rows is None else table["kind"][rows]
    return bool((kinds == _NUMBERS[name]).any())


class _Resolver:
    """Turns steps into flows; remembers what each communicator and plan says."""

    def __init__(self, index: Index, plans: Plans) -> None:
        self._index, self._plans = index, plans
        comms = index.recording.comms
        sizes = [len(comm.members) for comm in comms]
        self._sizes = np.array([*sizes, 0], np.int64)
        self._starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        self._places = [index.place(np.array(c.members, np.int64)) for c in comms]
        self._members = np.concatenate([*self._places, np.zeros(1, np.int64)])
        self._kind_of: dict[tuple[int, int], int] | None = None

    def flows(
        self, steps: NDArray[Any], rows: NDArray[np.int64], *, wire_only: bool
    ) -> FlowTable:
        names = ("transfer",) if wire_only else (*_PULLED, *_PUSHED, *_EITHER)
        moves = np.isin(steps["kind"], [_NUMBERS[name] for name in names])
        moves &= steps["nbytes"] > 0
        steps, rows = steps[moves], rows[moves]
        peer, comm = steps["peer"].astype(np.int64), steps["comm"].astype(np.int64)
        has_one = (peer >= 0) & (peer < self._sizes[comm])
        several = ~has_one & (peer == NOBODY)
        several &= ~np.isin(steps["kind"], [_NUMBERS["copy"]])
        one = self._with_one(steps[has_one], rows[has_one])
        if not several.any():
            return one
        return joined([one, self._with_several(steps[several], rows[several])])

    def _with_one(self, steps: NDArray[Any], rows: NDArray[np.int64]) -> FlowTable:
        comm, rank = steps["comm"].astype(np.int64), self._index.place(steps["rank"])
        peer = self._members[self._starts[comm] + steps["peer"]]
        pulls = np.isin(steps["kind"], [_NUMBERS[name] for name in _PULLED])
        either = np.isin(steps["kind"], [_NUMBERS[name] for name in _EITHER])
        if either.any():
            pulls[either] = self._pulls(steps[either])
        src, dst = np.where(pulls, peer, rank), np.where(pulls, rank, peer)
        return self._timed(steps, rows, src, dst)

    def _timed(
        self,
        steps: NDArray[Any],
        rows: NDArray[np.int64],
        src: NDArray[np.int64],
        dst: NDArray[np.int64],
        unknown_nbytes: float = 0.0,
    ) -> FlowTable:
        """Return flows that begin when what they needed was there."""
        begin = self._index.us(steps["begin"] + steps["wait"])
        end = self._index.us(steps["end"])
        begin = np.minimum(begin, end)
        nbytes = steps["nbytes"].astype(np.float64)
        return FlowTable(src, dst, begin, end, nbytes, rows, unknown_nbytes)

    def _pulls(self, steps: NDArray[Any]) -> NDArray[np.bool_]:
        kinds = self._index.recording.kinds
        found = [
            kind is not None and "pull" in kinds[kind].schedule.split()
            for kind in self._kinds(steps)
        ]
        return np.array(found, bool)

    def _kinds(self, steps: NDArray[Any]) -> Iterator[int | None]:
        """Yield the kind of the call that each step is in."""
        if self._kind_of is None:
            index = self._index
            self._kind_of = dict(
                zip(
                    zip(
                        index.instance_comm.tolist(),
                        index.instance_seq.tolist(),
                        strict=True,
                    ),
                    index.instance_kind.tolist(),
                    strict=True,
                )
            )
        for key in zip(steps["comm"].tolist(), steps["seq"].tolist(), strict=True):
            yield self._kind_of.get(key)

    def _with_several(self, steps: NDArray[Any], rows: NDArray[np.int64]) -> FlowTable:
        """Return what plans say of steps with several peers."""
        comms, kinds = self._index.recording.comms, self._index.recording.kinds
        groups: dict[Any, list[int]] = defaultdict(list)
        columns = (steps[name].tolist() for name in ("rank", "comm", "lane", "step"))
        for at, key in enumerate(zip(self._kinds(steps), *columns, strict=True)):
            groups[key].append(at)
        taken: list[NDArray[np.int64]] = []
        ends: list[NDArray[np.int64]] = []
        unknown = 0.0
        for (kind, rank, comm, lane, step), places in groups.items():
            members = comms[comm].members
            plan = None if kind is None else self._plans.of(kinds[kind], len(members))
            own = members.index(rank) if rank in members else -1
            pairs = _pairs(plan, own, lane, step)
            if pairs is None:
                unknown += float(steps["nbytes"][places].sum())
                continue
            place = self._places[comm]
            for source, target in pairs:
                taken.append(np.array(places))
                ends.append(np.tile(place[[source, target]], (len(places), 1)))
        if not taken:
            none = np.zeros(0, np.int64)
            return self._timed(steps[:0], rows[:0], none, none, unknown)
        every = np.concatenate(taken)
        both = np.concatenate(ends)
        return self._timed(steps[every], rows[every], both[:, 0], both[:, 1], unknown)


def _pairs(
    plan: Plan | None, rank: int, lane: int, step: int
) -> list[tuple[int, int]] | None:
    """Return from where to where a step of a plan carries data; None: nobody knows."""
    if plan is None or not 0 <= rank < len(plan.ranks):
        return None
    lanes = plan.ranks[rank]
    if not (0 <= lane < len(lanes) and 0 <= step < len(lanes[lane])):
        return None
    move = lanes[lane][step]
    return targets_of(rank, move) if isinstance(move, Move) else None
