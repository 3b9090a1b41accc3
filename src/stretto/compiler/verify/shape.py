"""The buffers of a plan: what lies where, and what exists at all."""

from __future__ import annotations

from stretto.compiler.plan import (
    FLAG_BITS,
    BufferRun,
    Loc,
    Move,
    Plan,
    Signal,
    Space,
    Step,
    Wait,
    spell_step,
)
from stretto.errors import BoundsError
from stretto.program.collectives import SymbolRun

Atoms = tuple[tuple[int, int], ...]


def chunks_of(runs: tuple[BufferRun, ...], atoms: Atoms) -> list[tuple[int, int]]:
    """Return the chunks that every position of a buffer spans: from, to."""
    found, at = [], 0
    for run in runs:
        for atom in range(run.atom, run.atom + run.stop - run.start):
            end = at + atoms[atom][1] - atoms[atom][0]
            found.append((at, end))
            at = end
    return found


def check_shape(plan: Plan) -> None:
    """Raise when a plan names what does not exist, or is not of its collective."""
    kind, shape = plan.kind, plan.shape
    kind.check(shape)
    sides = (plan.inputs, plan.outputs, plan.stage_units, plan.ranks)
    if any(len(side) != plan.num_ranks for side in sides):
        raise BoundsError(
            f"{plan.name}: want buffers and lanes of {shape.num_ranks} ranks"
        )
    if any(units < 0 for units in plan.stage_units):
        raise BoundsError(f"{plan.name}: {plan.stage_units} units of staging")
    if not all(plan.ranks):
        raise BoundsError(f"{plan.name}: want at least one lane of every rank")
    cuts = [0, *(stop for _, stop in plan.atoms)]
    whole = cuts[-1] == kind.num_symbols(shape)
    if not whole or any(a != c or b <= a for (a, b), c in zip(plan.atoms, cuts)):  # noqa: B905
        raise BoundsError(f"{plan.name}: atoms {plan.atoms} do not cover all symbols")
    for rank in range(plan.num_ranks):
        for runs, want in (
            (plan.inputs[rank], kind.input_runs(shape, rank)),
            (plan.outputs[rank], kind.output_runs(shape, rank)),
        ):
            if _symbols(runs, plan.atoms) != _merge(list(want)):
                raise BoundsError(
                    f"{plan.name}: rank {rank}: {runs} are no {plan.collective} buffers"
                )
    if max(len(lane) for of_rank in plan.ranks for lane in of_rank) >> FLAG_BITS:
        raise BoundsError(f"{plan.name}: want lanes of less than 2**{FLAG_BITS} steps")
    checker = _Bounds(plan)
    for rank, lane, _, step in plan.steps():
        checker.check(rank, lane, step)


def _symbols(runs: tuple[BufferRun, ...], atoms: Atoms) -> list[SymbolRun]:
    found, at = [], 0
    for run in runs:
        stop = run.atom + run.stop - run.start
        if not 0 <= run.atom < stop <= len(atoms):
            return []
        width = atoms[stop - 1][1] - atoms[run.atom][0]
        found.append(SymbolRun(at, at + width, atoms[run.atom][0]))
        at += width
    return _merge(found)


def _merge(runs: list[SymbolRun]) -> list[SymbolRun]:
    merged: list[SymbolRun] = []
    for run in runs:
        last = merged[-1] if merged else None
        if last and run.first - last.first == run.start - last.start:
            merged[-1] = SymbolRun(last.start, run.stop, last.first)
        else:
            merged.append(run)
    return merged


class _Bounds:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.held = [*map(_held, plan.inputs)], [*map(_held, plan.outputs)]
        """By space and rank."""

    def check(self, rank: int, lane: int, step: Step) -> None:
        """Raise when a step names what does not exist."""
        wrong = (
            self._sync(rank, lane, step)
            if isinstance(step, Signal | Wait)
            else self._move(rank, step)
        )
        if wrong:
            line = spell_step(rank, step)
            raise BoundsError(f"{self.plan.name}: rank {rank}: {line}: {wrong}")

    def _sync(self, rank: int, lane: int, step: Signal | Wait) -> str:
        if not 0 <= step.rank < self.plan.num_ranks:
            return f"there are {self.plan.num_ranks} ranks"
        if not 0 <= step.lane < len(self.plan.ranks[step.rank]):
            return f"rank {step.rank} has {len(self.plan.ranks[step.rank])} lanes"
        if (step.rank, step.lane) == (rank, lane):
            return "a lane does not signal itself"
        if not 0 < step.n < 1 << FLAG_BITS:
            return f"signals are counted from 1 to 2**{FLAG_BITS} - 1"
        return ""

    def _move(self, rank: int, move: Move) -> str:
        if not 0 <= move.start < move.stop <= len(self.plan.atoms):
            return f"there are {len(self.plan.atoms)} atoms"
        if not move.srcs or not move.dsts:
            return "want at least one source and one destination"
        ranks, units = self.plan.num_ranks, self.plan.stage_units
        width = move.stop - move.start
        for loc in move.srcs + move.dsts:
            rank_of, space, at, _ = loc
            inside = space is Space.STAGE and 0 <= rank_of < ranks
            if inside and 0 <= at <= units[rank_of] - width:
                continue
            if wrong := self._loc(move, loc):
                return wrong
        if self.plan.hosts and (wrong := self._far(rank, move)):
            return wrong
        for src in move.srcs:
            if src.packets and src.rank != rank:
                return "packets are read by their owner"
        for dst in move.dsts:
            if dst.space is Space.INPUT:
                return "input is never written"
            if dst.packets and dst.rank == rank:
                return "packets go to peers"
        return ""

    def _far(self, rank: int, move: Move) -> str:
        """Return why a move that touches another host is no plain put."""
        plan = self.plan
        far = [d for d in (*move.dsts, *move.srcs) if plan.is_far(rank, d.rank)]
        if not far:
            return ""
        where = f"rank {far[0].rank} is on another host"
        if len(move.dsts) > 1 or len(move.srcs) > 1 or far[0] is not move.dsts[0]:
            return f"{where}: what reaches there is a put, from one place to one place"
        if far[0].packets or move.srcs[0].packets:
            return f"{where}: packets do not go there"
        if move.srcs[0].rank != rank:
            return f"{where}: what is put there comes from this rank"
        if far[0].space is not Space.STAGE:
            return f"{where}: puts land in staging only"
        return f"{where}: nothing is finished on the way" if move.finish else ""

    def _loc(self, move: Move, loc: Loc) -> str:
        rank, space, at, packets = loc
        start, stop = move.start, move.stop
        if not 0 <= rank < self.plan.num_ranks:
            return f"there are {self.plan.num_ranks} ranks"
        if space is Space.STAGE:
            units = self.plan.stage_units[rank]
            inside = 0 <= at <= units - stop + start
            return "" if inside else f"rank {rank} has {units} units of staging"
        if packets:
            return "packets lie in staging only"
        atoms, ends = self.held[space][rank]
        if (
            0 <= at < len(atoms)
            and atoms[at] == start
            and at + stop - start <= ends[at]
        ):
            return ""
        found = atoms[max(0, at) : at + stop - start]
        if found == list(range(start, stop)):  # of several runs
            return ""
        return f"r{rank}.{space.name.lower()}[{at}] holds atoms {found}"


def _held(runs: tuple[BufferRun, ...]) -> tuple[list[int], list[int]]:
    """Return by position which atom a buffer holds, and where its run ends."""
    atoms: list[int] = []
    ends: list[int] = []
    for run in runs:
        length = run.stop - run.start
        atoms += range(run.atom, run.atom + length)
        ends += [len(atoms)] * length
    return atoms, ends
