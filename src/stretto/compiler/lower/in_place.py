"""Pass 3, save inputs: when output and input are the same memory, keep what is needed.

A program never sees aliasing: `input` is what the caller passed, to the last line. So
an input that would be read after an output was stored over it is copied to staging
first, and read from there. Only local steps change, never what goes over the wire.

The output lies over the input chunk by chunk (`laid_over`), and both are cut alike
(`place_values`), so positions are one or strangers. The proof says so by its own code.

A staged plan then serves both kinds of call: a copy onto itself does nothing in place,
and what is needed elsewhere. Where peers read the input itself (zero-copy), it would
disturb them, and is left out: all ranks are in place there, or none.
"""

from __future__ import annotations

from stretto.compiler.lower.placement import Placement
from stretto.compiler.lower.values import laid_over
from stretto.compiler.plan import BufferRun, Loc, Move, Space
from stretto.program.collectives import Collective, Shape

Moves = tuple[tuple[int, Move], ...]


def save_inputs(
    placement: Placement, kind: Collective, shape: Shape
) -> tuple[Moves, list[int]]:
    """Return the moves, with copies of what must survive, and the units of staging."""
    units = list(placement.units)
    moves = list(placement.moves)
    saved: list[tuple[int, Move]] = []
    mine: list[list[int]] = [[] for _ in units]
    """Which moves are a rank's: of others' nothing changes."""
    for index, (owner, _) in enumerate(moves):
        mine[owner].append(index)
    exposed = _read_by_peers(moves)
    for rank in range(shape.num_ranks):
        over = under(placement, kind, shape, rank)
        if over:
            if rank in exposed:
                for index in mine[rank]:
                    moves[index] = rank, _spare(rank, over, moves[index][1])
            units[rank] = _save(rank, over, moves, mine[rank], saved, units[rank])
    kept = [(rank, move) for rank, move in moves if move.dsts]
    return (*saved, *kept), units


def under(
    placement: Placement, kind: Collective, shape: Shape, rank: int
) -> dict[int, int]:
    """Return the input's position under each of the output's that has one."""
    pairs = laid_over(kind, shape, rank)
    at_in = _positions(placement.inputs[rank], placement.atoms)
    at_out = _positions(placement.outputs[rank], placement.atoms)
    return {
        at_out[ours]: at_in[theirs]
        for theirs, ours in pairs
        if ours in at_out and theirs in at_in
    }


def _positions(
    runs: tuple[BufferRun, ...], atoms: tuple[tuple[int, int], ...]
) -> dict[int, int]:
    """Return the position that begins with a symbol."""
    return {
        atoms[run.atom + i][0]: run.start + i
        for run in runs
        for i in range(run.stop - run.start)
    }


def _read_by_peers(moves: list[tuple[int, Move]]) -> set[int]:
    """Return whose inputs others read."""
    return {
        src.rank
        for owner, move in moves
        for src in move.srcs
        if src.space is Space.INPUT and src.rank != owner
    }


def _spare(rank: int, over: dict[int, int], move: Move) -> Move:
    """Leave out the copy of an input onto itself."""
    if not _copies_input(rank, move):
        return move
    dsts = tuple(d for d in move.dsts if not _is_itself(rank, over, move, d))
    return move._replace(dsts=dsts)


def _copies_input(rank: int, move: Move) -> bool:
    src = move.srcs[0]
    only = len(move.srcs) == 1 and not move.finish
    return only and src.rank == rank and src.space is Space.INPUT


def copies_onto_itself(rank: int, over: dict[int, int], move: Move, dst: Loc) -> bool:
    """Return whether a move only copies an input to the output that lies over it."""
    return _copies_input(rank, move) and _is_itself(rank, over, move, dst)


def _is_itself(rank: int, over: dict[int, int], move: Move, dst: Loc) -> bool:
    """Return whether a destination of a copied input is where it already lies."""
    here = dst.rank == rank and dst.space is Space.OUTPUT
    return here and over.get(dst.pos, -1) == move.srcs[0].pos


def _save(
    rank: int,
    over: dict[int, int],
    moves: list[tuple[int, Move]],
    mine: list[int],
    saved: list[tuple[int, Move]],
    unit: int,
) -> int:
    """Redirect reads of overwritten input of one rank; return its units of staging."""
    gone: set[int] = set()
    kept: dict[tuple[int, int], Loc] = {}
    for index in mine:
        move = moves[index][1]
        width = move.stop - move.start
        srcs = list(move.srcs)
        for i, src in enumerate(srcs):
            if src.space is not Space.INPUT or src.rank != rank:
                continue
            if gone.isdisjoint(range(src.pos, src.pos + width)):
                continue
            key = (src.pos, width)
            if key not in kept:
                kept[key] = Loc(rank, Space.STAGE, unit)
                unit += width
                saved.append((rank, Move((kept[key],), (src,), move.start, move.stop)))
            srcs[i] = kept[key]
        if tuple(srcs) != move.srcs:
            moves[index] = (rank, move._replace(srcs=tuple(srcs)))
        for dst in move.dsts:
            if dst.space is Space.OUTPUT and dst.rank == rank:
                span = range(dst.pos, dst.pos + width)
                if _copies_input(rank, move) and _is_itself(rank, over, move, dst):
                    continue
                gone |= {over[p] for p in span if p in over}
    return unit
