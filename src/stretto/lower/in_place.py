"""Pass 3, save inputs: when output and input are the same memory, keep what is needed.

A program never sees aliasing: `input` is what the caller passed, to the last line. So
an input that would be read after an output was stored over it is copied to staging
first, and read from there; a copy onto itself is left out. Only local steps change,
never what goes over the wire.
"""

from __future__ import annotations

from stretto.collectives import Collective, Shape
from stretto.lower.homes import Homes
from stretto.plan import Loc, Move, Space
from stretto.verify import aliases

__all__ = ["save_inputs"]

Moves = tuple[tuple[int, Move], ...]


def save_inputs(
    homes: Homes, kind: Collective, shape: Shape
) -> tuple[Moves, list[int]]:
    """Return the moves, with copies of what must survive, and the units of staging."""
    units = list(homes.units)
    moves = list(homes.moves)
    saved: list[tuple[int, Move]] = []
    for rank in range(shape.num_ranks):
        over = aliases(
            kind, shape, homes.atoms, homes.inputs[rank], homes.outputs[rank], rank
        )
        if over:
            moves = [_spare(rank, over, owner, move) for owner, move in moves]
            units[rank] = _save(rank, over, moves, saved, units[rank])
    kept = [(rank, move) for rank, move in moves if move.dsts]
    return (*saved, *kept), units


def _spare(rank: int, over: dict[int, int], owner: int, move: Move) -> tuple[int, Move]:
    """Leave out the copy of an input onto itself."""
    if owner != rank or len(move.srcs) > 1 or move.finish:
        return owner, move
    src = move.srcs[0]
    dsts = tuple(
        dst
        for dst in move.dsts
        if not (
            dst.space is Space.OUTPUT
            and dst.rank == rank
            and src == Loc(rank, Space.INPUT, over.get(dst.pos, -1))
        )
    )
    return owner, move._replace(dsts=dsts)


def _save(
    rank: int,
    over: dict[int, int],
    moves: list[tuple[int, Move]],
    saved: list[tuple[int, Move]],
    unit: int,
) -> int:
    """Redirect reads of overwritten input of one rank; return its units of staging."""
    gone: set[int] = set()
    kept: dict[tuple[int, int], Loc] = {}
    for index, (owner, move) in enumerate(moves):
        if owner != rank:
            continue
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
            moves[index] = (owner, move._replace(srcs=tuple(srcs)))
        for dst in move.dsts:
            if dst.space is Space.OUTPUT and dst.rank == rank:
                span = range(dst.pos, dst.pos + width)
                gone |= {over[p] for p in span if p in over}
    return unit
