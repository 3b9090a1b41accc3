"""Which blocks and threads of a kernel have which rows of an epilogue.

Rows are whole in a block, or shared by blocks that follow one another, which then tell
each other their sums. What a thread has of a row stays in its registers from the move
that completes it, where it can.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from stretto.compiler.plan import Batched, Move, Plan, Schedule, Space
from stretto.executors.cuda.codegen.operands import Operands
from stretto.executors.cuda.words import BOARD
from stretto.program.epilogues import Spec

MAX_HELD = 4
"""Rows of which a thread has registers for a cell each."""
MOST_KEPT = 1024
"""Cells that a block has registers for."""
MAX_SHARE = 32
"""Blocks that have a row together: as many as read its sums at once."""
MAX_CLUSTER = 8
"""Blocks of a cluster on every GPU that has them."""
ALONE = 256
"""Threads of a block up to which an SM has registers for two of them."""
EACH_ITS_OWN = 128
"""Blocks up to which each has an SM of its own; of more, two have one, whatever it
costs in registers."""
APART = 96
"""Larger blocks in clusters of more than two: 132 SMs in groups hold 120."""


@dataclass(frozen=True, slots=True)
class HeldRows:
    """How many rows stay in registers as moves complete them."""

    rows: int = 0
    """Of a thread; 0: none, they are read again."""
    slots: int = 0
    """Of a block, where each warp has some of them; 0: all threads have all."""


NOTHING_HELD = HeldRows()


def near(share: int, schedule: Schedule, held: HeldRows) -> bool:
    """Return whether blocks that share rows are a cluster, or meet in memory.

    A word of another block's shared memory arrives 1 us sooner (1 to 8 rows, 4 H200);
    but a cluster lies on one group of SMs, and of large blocks not as many fit.
    """
    fits = share == 2 or two_on_an_sm(schedule, held) or schedule.blocks <= APART
    return 1 < share <= MAX_CLUSTER and fits


def two_on_an_sm(schedule: Schedule, held: HeldRows) -> bool:
    """Return whether two blocks find room on an SM, if the compiler is told to."""
    many = schedule.blocks > EACH_ITS_OWN
    return held.rows == 1 and (schedule.threads <= ALONE or many)


def shared_by(spec: Spec, blocks: int, rows: int) -> int:
    """Return how many blocks have each row together, when a part has so many rows.

    1: each block has one row at most. 0: blocks have several rows, one after the other.
    A schedule with more blocks than there are rows would leave some idle. Parts of a
    row are whole groups of cells, one for each lane of a warp.
    """
    if rows > blocks or not spec.row:
        return 0
    share = min(MAX_SHARE, blocks // max(rows, 1))
    while share > 1 and (blocks % share or spec.parts(share) != share):
        share -= 1
    fits = spec.row <= BOARD * 32 * spec.cell * share
    return share if share > 1 and fits else 1


def held_by_all(
    run: Batched,
    ranks: tuple[int, ...],
    operands: Operands,
    epilogue: Spec | None,
    share: int,
) -> HeldRows:
    """Return what every rank can keep in registers of an epilogue's rows."""
    if epilogue is None:
        return NOTHING_HELD
    found = set()
    for rank in ranks:
        grouped = run.batches(rank)
        first = [index for index, _ in grouped[0]] if grouped else []
        found.add(_held_rows(epilogue, run.plan, rank, share, first, operands))
    return found.pop() if len(found) == 1 else NOTHING_HELD


def _held_rows(
    spec: Spec,
    plan: Plan,
    rank: int,
    share: int,
    first: Collection[int],
    operands: Operands,
) -> HeldRows:
    """Return what can stay in registers as moves complete it.

    Each slice of the result then is one row, or a part of one, with a cell for each
    thread at most, and is stored by this rank, once, after its `first` steps, which
    send. (Two cells of a thread take 0.8 to 2.4 us more than one: on 2 H200.)
    """
    if share == 0 or spec.row % spec.cell:
        return NOTHING_HELD
    cells = spec.row // share // spec.cell
    schedule = plan.schedule
    threads = -(-schedule.threads // 32) * 32
    relays = any(
        loc.rank == rank and loc.space is Space.OUTPUT
        for step in plan.ranks[rank][0]
        if isinstance(step, Move)
        for loc in step.srcs
    )
    stored = [
        loc.pos + nth
        for index, step in enumerate(plan.ranks[rank][0])
        if isinstance(step, Move)
        for loc in step.dsts
        if loc.rank == rank and loc.space is Space.OUTPUT
        for nth in range(step.stop - step.start)
        if index not in first
    ]
    positions = [position for position, _ in results(plan, rank)]
    if not (
        cells <= threads <= 512
        and sorted(stored) == positions
        and schedule.memory == "staged"
        and schedule.protocol in ("packets", "bulk")
        and not schedule.phases
        and not relays
    ):
        return NOTHING_HELD
    turns = [operands.turn(atom) for _, atom in results(plan, rank)]
    rows = max(
        sum((warp - turn) % threads < cells for turn in turns)
        for warp in range(0, threads, 32)
    )
    if rows > min(MAX_HELD, MOST_KEPT // threads):
        return NOTHING_HELD
    return HeldRows(rows, len(turns) if rows < len(turns) else 0)


def results(plan: Plan, rank: int) -> Iterator[tuple[int, int]]:
    """Yield the positions of a rank's output, and their atoms."""
    for run in plan.outputs[rank]:
        for nth in range(run.stop - run.start):
            yield run.start + nth, run.atom + nth
