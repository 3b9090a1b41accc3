"""Pass 2, place values: who stores them where, and with which moves.

A value is stored by one move of its rank, into all the places where it is wanted: the
output, staging that peers will read, and (push) the staging or output of the peers it
goes to. So a sum that is sent on never touches memory in between. A receipt that was
pushed is already somewhere when it arrives; it needs a move only to go further.

Moves are ordered by level (transfers on the longest way), and at one level: first what
is sent, then what waits. This order is the same on all ranks and follows the data, so
it cannot hang. Peers are served in turn, starting after oneself, so that they are not
all served by everybody at once.
"""

from __future__ import annotations

import enum
from bisect import bisect_left, bisect_right
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from operator import itemgetter

from stretto.compiler.lower.atoms import atoms_of, cut, cut_alike
from stretto.compiler.lower.values import Value, ValueGraph, ValueKind
from stretto.compiler.plan import BufferRun, Loc, Move, Space
from stretto.program.collectives import Collective, Shape, SymbolRun


class MoveOrder(enum.IntEnum):
    """Within a level, what comes first."""

    SEND = 0
    """An input is sent."""
    FORWARD = 1
    """What arrived is sent on, or is fetched."""
    SUM = 2
    KEEP = 3
    """What arrived stays here."""
    LAY = 4
    """A part is laid beside others."""
    PART = 5
    """A part of a value is sent or stored."""


_BY_OPERATION = (MoveOrder.SUM, MoveOrder.LAY, MoveOrder.PART)
"""Those follow the program; others go by how far away peers are."""


@dataclass(slots=True)
class DraftMove:
    """A move to be, on a rank."""

    rank: int
    level: int
    turn: MoveOrder
    srcs: list[Loc]
    lo: int
    hi: int
    op: int
    dsts: list[Loc] = field(default_factory=list)
    after: int = 0
    """How far behind oneself a value that arrived came from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Moves in order, and the buffers they name."""

    moves: tuple[tuple[int, Move], ...]
    """(rank, move), in an order that follows the data."""
    atoms: tuple[tuple[int, int], ...]
    inputs: tuple[tuple[BufferRun, ...], ...]
    outputs: tuple[tuple[BufferRun, ...], ...]
    units: tuple[int, ...]


def place_values(
    flow: ValueGraph,
    kind: Collective,
    shape: Shape,
    *,
    in_place: bool = False,
    hosts: tuple[int, ...] = (),
) -> Placement:
    """Return the moves that store every live value where it is wanted.

    `in_place` cuts a rank's input and output alike where they may be one memory.
    What goes to another of the `hosts` does so by a move of its own, from one place.
    """
    return _Homes(flow, kind, shape, in_place, hosts).run()


class _Homes:
    def __init__(
        self,
        flow: ValueGraph,
        kind: Collective,
        shape: Shape,
        in_place: bool,
        hosts: tuple[int, ...],
    ) -> None:
        self.flow, self.kind, self.shape, self.hosts = flow, kind, shape, hosts
        ranks = range(shape.num_ranks)
        runs_in = [kind.input_runs(shape, r) for r in ranks]
        runs_out = [kind.output_runs(shape, r) for r in ranks]
        cuts = cut(flow, runs_in + runs_out, kind.num_symbols(shape))
        self.starts = sorted(cut_alike(cuts, kind, shape) if in_place else cuts)
        self.atom_of = atoms_of(self.starts)
        """The atom of every symbol, and of the end."""
        self.inputs = [self._in_atoms(runs) for runs in runs_in]
        self.outputs = [self._in_atoms(runs) for runs in runs_out]
        self.places = {
            Space.INPUT: [sorted(r, key=_by_atom) for r in self.inputs],
            Space.OUTPUT: [sorted(r, key=_by_atom) for r in self.outputs],
        }
        self.units = [0] * shape.num_ranks
        self.drafts: dict[object, DraftMove] = {}
        self.home: dict[int, Loc] = {}
        self.plain: dict[int, Loc] = {}
        """Copies, in plain staging, of what came in packets."""
        self.final: dict[tuple[int, int, int], int] = {}
        """(value, lo, hi) of whole finals, to their rank."""
        self.children: dict[int, list[int]] = defaultdict(list)
        self.finished: set[tuple[int, int]] = set()
        """Places in staging, by rank, that hold what has been divided."""

    def run(self) -> Placement:
        values = self.flow.values
        whole = [f for f in self.flow.finals if self._is_whole(f.value, f.lo, f.hi)]
        self.final = {(f.value, f.lo, f.hi): f.rank for f in whole}
        for number, value in values.items():
            self._land(number, value)
        for number, value in values.items():
            self._make(number, value)
        for final in self.flow.finals:
            self._finish(final.rank, final.value, final.lo, final.hi)
        drafts = [d for d in self.drafts.values() if d.dsts]
        drafts.sort(key=self._order)
        return Placement(
            moves=tuple((d.rank, self._move(d)) for d in drafts),
            atoms=tuple(pairwise(self.starts)),
            inputs=tuple(map(tuple, self.inputs)),
            outputs=tuple(map(tuple, self.outputs)),
            units=tuple(self.units),
        )

    def _order(self, draft: DraftMove) -> tuple[int, MoveOrder, int, int, int]:
        turn, me, op = draft.turn, draft.rank, draft.op
        after = draft.after
        if turn in _BY_OPERATION:
            after = op
        elif turn is MoveOrder.SEND:
            n = self.shape.num_ranks
            peers = [(d.rank - me) % n for d in draft.dsts if d.rank != me]
            after = min(peers, default=0)
        elif any(d.rank != me for d in draft.dsts):
            turn = MoveOrder.FORWARD
        return draft.level, turn, after, op, me

    # Places.

    def _in_atoms(self, runs: tuple[SymbolRun, ...]) -> list[BufferRun]:
        found, at = [], 0
        for start, stop, first in runs:
            a, b = self.atom_of[first], self.atom_of[first + stop - start]
            found.append(BufferRun(at, at + b - a, a))
            at += b - a
        return found

    def _buffer(self, space: Space, rank: int, lo: int) -> Loc:
        atom = self.atom_of[lo]
        runs = self.places[space][rank]
        run = runs[bisect_right(runs, atom, key=_by_atom) - 1]
        return Loc(rank, space, run.start + atom - run.atom)

    def _stage(self, rank: int, lo: int, hi: int, *, packets: bool = False) -> Loc:
        at = self.units[rank]
        self.units[rank] += self.atom_of[hi] - self.atom_of[lo]
        return Loc(rank, Space.STAGE, at, packets)

    # Receipts that are pushed land somewhere.

    def _land(self, number: int, value: Value) -> None:
        if value.kind is not ValueKind.RECEIPT or value.how.direction != "push":
            return
        self.children[value.operands[0]].append(number)
        lo, hi = value.lo, value.hi
        if value.how.memory != "staged" and (number, lo, hi) in self.final:
            self.home[number] = self._buffer(Space.OUTPUT, value.rank, lo)
        else:
            packets = value.how.protocol == "packets"
            self.home[number] = self._stage(value.rank, lo, hi, packets=packets)

    # Every value is made by one move, stored wherever it is wanted.

    def _make(self, number: int, value: Value) -> None:
        if value.kind is ValueKind.SUM:
            srcs = [self._read(o, value, value.lo) for o in value.operands]
            self._draft(number, value, srcs)
        elif value.kind is ValueKind.RECEIPT:
            if value.how.direction == "pull":
                self._draft(
                    number, value, [self._read(value.operands[0], value, value.lo)]
                )
            else:
                self._draft(number, value, [self.home[number]])
        elif value.kind is ValueKind.JOIN:
            self._lay(number, value)
        for child in self.children[number]:
            self._send(number, value, child)

    def _draft(self, number: int, value: Value, srcs: list[Loc]) -> None:
        turn = MoveOrder.SUM
        draft = DraftMove(
            value.rank, value.level, turn, srcs, value.lo, value.hi, value.op
        )
        if value.kind is ValueKind.RECEIPT:
            source = self.flow.values[value.operands[0]]
            pulled = value.how.direction == "pull"  # sums here may read it
            draft.turn = MoveOrder.FORWARD if pulled else MoveOrder.KEEP
            draft.after = (value.rank - source.rank) % self.shape.num_ranks
        self.drafts[number] = draft

    def _lay(self, number: int, value: Value) -> None:
        """Store the parts of a join side by side, with the moves that make them."""
        self.home[number] = home = self._stage(value.rank, value.lo, value.hi)
        ends = (*value.cuts[1:], value.hi)
        first = home.pos - self.atom_of[value.lo]
        for part, lo, hi in zip(value.operands, value.cuts, ends, strict=True):
            made = self.flow.values[part]
            at = Loc(home.rank, Space.STAGE, first + self.atom_of[lo])
            if made.kind in _MOVED and lo == made.lo and hi == made.hi:
                self.drafts[part].dsts.append(at)
                continue
            source = self._read(part, value, lo)
            self.drafts["part", number, lo] = DraftMove(
                value.rank, value.level, MoveOrder.LAY, [source], lo, hi, value.op, [at]
            )

    def _send(self, number: int, value: Value, child: int) -> None:
        """Store a value in a peer: with the move that makes it, or with one more."""
        receipt = self.flow.values[child]
        target = self.home[child]
        whole = (receipt.lo, receipt.hi) == (value.lo, value.hi)
        if self.hosts and self.hosts[value.rank] != self.hosts[receipt.rank]:
            self._send_far(number, value, child)
            return
        if value.kind in _MOVED and whole:
            self.drafts[number].dsts.append(target)
            return
        source = self._read(number, value, receipt.lo)
        turn = MoveOrder.SEND if value.kind is ValueKind.INPUT else MoveOrder.PART
        slot = ("send", number, receipt.lo, receipt.hi)
        if slot not in self.drafts:
            lo, hi, op = receipt.lo, receipt.hi, receipt.op
            self.drafts[slot] = DraftMove(
                value.rank, value.level, turn, [source], lo, hi, op
            )
        draft = self.drafts[slot]
        draft.dsts.append(target)

    def _send_far(self, number: int, value: Value, child: int) -> None:
        """Put a value into a peer on another host, from where it lies as plain data."""
        receipt = self.flow.values[child]
        source = self._read(number, value, receipt.lo)
        if source.packets:
            at = source.pos - self.home[number].pos
            plain = self._unpacked(number, value)
            source = _further(plain, at)
        turn = MoveOrder.SEND if value.kind is ValueKind.INPUT else MoveOrder.PART
        lo, hi, op = receipt.lo, receipt.hi, receipt.op
        self.drafts["far", number, child] = DraftMove(
            value.rank, value.level, turn, [source], lo, hi, op, [self.home[child]]
        )

    def _read(self, number: int, reader: Value, lo: int) -> Loc:
        """Return where `reader` reads a value, storing it there if it must be."""
        value = self.flow.values[number]
        remote = value.rank != reader.rank
        staged = reader.how.memory == "staged"
        if value.kind is ValueKind.INPUT:
            if remote and staged:
                return self._show_input(number, value, lo, lo + reader.hi - reader.lo)
            return self._buffer(Space.INPUT, value.rank, lo)
        if number not in self.home:
            whole = (number, value.lo, value.hi) in self.final
            if remote and not staged and whole:
                self.home[number] = self._buffer(Space.OUTPUT, value.rank, value.lo)
            else:
                self.home[number] = self._stage(value.rank, value.lo, value.hi)
                self.drafts[number].dsts.append(self.home[number])
        home = self.home[number]
        if remote and home.packets:
            home = self._unpacked(number, value)
        return _further(home, self.atom_of[lo] - self.atom_of[value.lo])

    def _unpacked(self, number: int, value: Value) -> Loc:
        """Return where peers may pull what came in packets: those their owner reads."""
        if number not in self.plain:
            self.plain[number] = self._stage(value.rank, value.lo, value.hi)
            self.drafts[number].dsts.append(self.plain[number])
        return self.plain[number]

    def _show_input(self, number: int, value: Value, lo: int, hi: int) -> Loc:
        """Copy a part of an input to staging, where peers may pull it."""
        slot = ("show", number, lo, hi)
        if slot not in self.drafts:
            source = [self._buffer(Space.INPUT, value.rank, lo)]
            shown = [self._stage(value.rank, lo, hi)]
            self.drafts[slot] = DraftMove(
                value.rank, 0, MoveOrder.SEND, source, lo, hi, -1, shown
            )
        return self.drafts[slot].dsts[0]

    # Outputs.

    def _is_whole(self, number: int, lo: int, hi: int) -> bool:
        value = self.flow.values[number]
        return value.kind in _MOVED and (lo, hi) == (value.lo, value.hi)

    def _finish(self, rank: int, number: int, lo: int, hi: int) -> None:
        value = self.flow.values[number]
        target = self._buffer(Space.OUTPUT, rank, lo)
        if (number, lo, hi) in self.final:
            landed = value.kind is ValueKind.RECEIPT and value.how.direction == "push"
            if not (landed and self.home[number] == target):
                self.drafts[number].dsts.insert(0, target)
            return
        sent = self.drafts.get(("send", number, lo, hi))
        if sent is not None and value.kind is ValueKind.INPUT:
            sent.dsts.insert(0, target)
            return
        source = self._read(number, value, lo)
        turn = MoveOrder.KEEP if value.kind is ValueKind.INPUT else MoveOrder.PART
        self.drafts["final", number, lo] = DraftMove(
            rank, value.level, turn, [source], lo, hi, value.op, [target]
        )

    def _is_finished(self, loc: Loc) -> bool:
        """Return whether a place holds what has been divided already."""
        if loc.space is Space.STAGE:
            return (loc.rank, loc.pos) in self.finished
        return loc.space is Space.OUTPUT

    def _move(self, draft: DraftMove) -> Move:
        me, dsts = draft.rank, draft.dsts
        start, stop = self.atom_of[draft.lo], self.atom_of[draft.hi]
        source, finish = draft.srcs[0], False
        if self.kind.reduces:
            if self._is_finished(source):
                # a relay passes on what is finished
                self.finished.update(
                    (d.rank, d.pos + at)
                    for d in dsts
                    if d.space is Space.STAGE
                    for at in range(stop - start)
                )
            else:
                finish = Space.OUTPUT in map(_space, dsts)
        if len(dsts) > 1:  # itself first, then the ranks behind it
            dsts.sort(key=_rank)
            first = bisect_left(dsts, me, key=_rank)
            dsts = dsts[first:] + dsts[:first]
        return Move(tuple(dsts), tuple(draft.srcs), start, stop, finish, draft.op)


def _further(loc: Loc, by: int) -> Loc:
    return Loc(loc.rank, loc.space, loc.pos + by, loc.packets) if by else loc


_MOVED = (ValueKind.SUM, ValueKind.RECEIPT)
"""Values that a move of their own makes."""


_rank, _space = itemgetter(0), itemgetter(1)
"""Of a location."""


def _by_atom(run: BufferRun) -> int:
    return run.atom
