"""Rewrite: which steps of a lane run at once, in one call of a kernel.

* Moves that stand side by side have all their loads in flight together. They must not
  read what another of them writes, and those that wait for packets must write to no
  peer: it might be waiting for just that before it sends.
* Signals in a row share one barrier, and so do waits. Of several on one channel only
  the last is sent: it says what they say.
* A signal of data is put off past the moves that follow it, up to the next thing that
  waits, so that signals of several moves share a barrier too. It promises more then,
  and nobody can wait for it in vain: nothing in between waits.
* What a peer signals before all else, its entry, is waited for before all else, once we
  have said ours. Nothing has to happen first, so nobody waits in vain; and the moves
  between which such waits stood are side by side.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from stretto.compiler.plan import (
    SIDE_BY_SIDE,
    Batch,
    Groups,
    Lanes,
    Loc,
    Move,
    Plan,
    Signal,
    Space,
    Step,
    Wait,
)

FLAGS = 32
"""Signals or waits of one call: a thread of one warp each."""


def in_batches(plan: Plan) -> Lanes:
    """Return the batches of a plan, which nobody has proved yet."""
    return tuple(
        tuple(tuple(_batches(plan, rank, lane)) for lane in range(len(lanes)))
        for rank, lanes in enumerate(plan.ranks)
    )


def in_order(plan: Plan, lanes: Lanes) -> Plan:
    """Return the plan with its steps in the order of their batches."""
    steps = tuple(
        tuple(tuple(step for batch in lane for _, step in batch) for lane in each)
        for each in lanes
    )
    return replace(plan, ranks=steps)


def sizes(lanes: Lanes) -> Groups:
    """Return how many steps every batch has."""
    return tuple(tuple(tuple(map(len, lane)) for lane in each) for each in lanes)


def _batches(plan: Plan, rank: int, lane: int) -> Iterator[Batch]:
    """Yield the steps of a lane in the order, and the groups, in which they run."""
    batch: Batch = []
    for index, step in _late_signals(_early_waits(plan, rank, lane)):
        if batch and not _joins(plan, rank, batch, step):
            yield batch
            batch = []
        if isinstance(step, Signal):
            batch, step = _superseding(batch, step)
        batch.append((index, step))
    if batch:
        yield batch


def _superseding(batch: Batch, step: Signal) -> tuple[Batch, Signal]:
    """Return a batch without the signals that a later one on their channel implies.

    Each flag of a call is stored by a thread of its own, in no order: were both stored,
    the earlier could be the last.
    """
    kept: Batch = []
    for index, one in batch:
        if isinstance(one, Signal) and (one.rank, one.lane) == (step.rank, step.lane):
            step = step._replace(release=step.release or one.release)
        else:
            kept.append((index, one))
    return kept, step


def _early_waits(plan: Plan, rank: int, lane: int) -> Batch:
    steps = list(enumerate(plan.ranks[rank][lane]))
    own = len(_first_signals(plan, rank, lane))
    early = {
        index: step
        for index, step in steps[own:]
        if isinstance(step, Wait)
        and any(
            (said.rank, said.lane, said.n) == (rank, lane, step.n)
            for said in _first_signals(plan, step.rank, step.lane)
        )
    }
    later = [(index, step) for index, step in steps[own:] if index not in early]
    return [*steps[:own], *early.items(), *later]


def _first_signals(plan: Plan, rank: int, lane: int) -> list[Signal]:
    found: list[Signal] = []
    for step in plan.ranks[rank][lane]:
        if not isinstance(step, Signal):
            break
        found.append(step)
    return found


def _late_signals(steps: Batch) -> Iterator[tuple[int, Step]]:
    late: Batch = []
    for index, step in steps:
        if isinstance(step, Signal) and step.release:
            late.append((index, step))
            continue
        if not isinstance(step, Move) or _polls(step):
            yield from late
            late = []
        yield index, step
    yield from late


def _joins(plan: Plan, rank: int, batch: Batch, step: Step) -> bool:
    first = batch[0][1]
    if not isinstance(step, Move) or not isinstance(first, Move):
        return type(step) is type(first) and len(batch) < FLAGS
    moves = [s for _, s in batch if isinstance(s, Move)]
    width = sum(m.stop - m.start for m in (*moves, step))
    sources = sum(len(m.srcs) * (m.stop - m.start) for m in (*moves, step))
    return (
        _polls(step) == _polls(first)
        and width <= SIDE_BY_SIDE
        and sources <= 2 * SIDE_BY_SIDE
        and not (_polls(step) and any(_reaches_out(rank, m) for m in (*moves, step)))
        and not any(_feeds(m, step) for m in moves)
        and not (plan.hosts and plan.in_place and _covers(rank, moves, step))
    )


def _covers(rank: int, earlier: Sequence[Move], later: Move) -> bool:
    """Return whether a move may read an input that lies under an earlier one's output.

    To ranks of one host, and to itself, a rank gives its input by one move. Those of
    other hosts get it by another, which is not to run beside the first.
    """
    stores = any(
        d.rank == rank and d.space is Space.OUTPUT for m in earlier for d in m.dsts
    )
    return stores and any(s.rank == rank and s.space is Space.INPUT for s in later.srcs)


def _polls(move: Move) -> bool:
    return any(loc.packets for loc in move.srcs)


def _reaches_out(rank: int, move: Move) -> bool:
    return any(loc.rank != rank or loc.packets for loc in move.dsts)


def _feeds(earlier: Move, later: Move) -> bool:
    """Return whether a move reads, or overwrites, what an earlier one writes."""
    return any(
        _overlap(d, earlier, x, later)
        for d in earlier.dsts
        for x in (*later.srcs, *later.dsts)
    )


def _overlap(one: Loc, owner: Move, other: Loc, user: Move) -> bool:
    return (
        one.rank == other.rank
        and one.space is other.space
        and one.pos < other.pos + user.stop - user.start
        and other.pos < one.pos + owner.stop - owner.start
    )
