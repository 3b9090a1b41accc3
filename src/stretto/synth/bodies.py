"""The tables and loops of an emitted file, one maker for each kind of collective.

Legend: N ranks, K split. A row names the owner of the data and the piece, then who
sends and who receives. What a rank passes on without wanting it waits in scratch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from stretto.errors import CallError
from stretto.synth.schedule import Move, Schedule
from stretto.synth.symmetry import Symmetry

__all__ = ["BODIES", "Rows"]

_Table = tuple[str, str, list[tuple[Any, ...]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """What differs between emitted files."""

    tables: tuple[_Table, ...]
    body: list[str]
    parameters: str = ""


class _Slots:
    """Scratch slots: counted per orbit, so that no two images meet in one."""

    def __init__(self, symmetry: Symmetry) -> None:
        self._symmetry = symmetry
        self._used: Counter[int] = Counter()
        self._slot: dict[tuple[int, int], int] = {}

    def take(self, chunk: int, rank: int) -> int:
        """Return a slot of the rank for the chunk."""
        if (chunk, rank) not in self._slot:
            orbit = min(g[rank] for g in self._symmetry.nodes)
            self._slot[chunk, rank] = self._used[orbit]
            self._used[orbit] += 1
        return self._slot[chunk, rank]

    def get(self, chunk: int, rank: int) -> int:
        """Return the slot taken, or -1."""
        return self._slot.get((chunk, rank), -1)

    @property
    def count(self) -> int:
        """Return how many chunks of scratch a rank needs."""
        return max(self._used.values(), default=0)


def _loop(
    symmetry: Symmetry, header: str, names: list[str], body: list[str]
) -> list[str]:
    """Return a loop over a table, and inside it over the images of its ranks."""
    if symmetry.order == 1:
        turned = [f"{name} = ranks[{name}_]" for name in names]
        return [header, *(f"    {line}" for line in [*turned, *body])]
    turned = [f"{name} = ranks[image({name}_, turn)]" for name in names]
    return [
        header,
        "    for turn in IMAGES:",
        *(f"        {line}" for line in [*turned, *body]),
    ]


def _all_gather(schedule: Schedule, symmetry: Symmetry) -> Rows:
    k = schedule.demand.split
    entries = [(m.chunk // k, m.chunk % k, m.src, m.dst) for m in schedule.folded]
    return Rows(
        tables=(("MOVES", "whose, which piece, from, to; by planned start", entries),),
        body=[
            "for r in ranks:",
            "    r.output[r * K : r * K + K] = r.input[:]",
            *_loop(
                symmetry,
                "for owner_, piece, src_, dst_ in MOVES:",
                ["owner", "src", "dst"],
                [
                    "own = src == owner",
                    "at = owner * K + piece",
                    "dst.output[at] = src.input[piece] if own else src.output[at]",
                ],
            ),
        ],
    )


def _all_to_all(schedule: Schedule, symmetry: Symmetry) -> Rows:
    k, n = schedule.demand.split, schedule.demand.network.num_ranks
    slots = _Slots(symmetry)
    entries = []
    for m in schedule.folded:
        (source, target), piece = divmod(m.chunk // k, n), m.chunk % k
        held = -1 if m.src == source else slots.get(m.chunk, m.src)
        kept = -1 if m.dst == target else slots.take(m.chunk, m.dst)
        entries.append((source, target, piece, m.src, m.dst, held, kept))
    legend = "whose, for whom, which piece, from, to, relay's slots there (-1: none)"
    return Rows(
        tables=(("MOVES", legend, entries),),
        body=[
            "for r in ranks:",
            "    r.output[r * K : r * K + K] = r.input[r * K : r * K + K]",
            *_loop(
                symmetry,
                "for owner_, to_, piece, src_, dst_, held, kept in MOVES:",
                ["owner", "to", "src", "dst"],
                [
                    "data = src.input[to * K + piece]",
                    *_relayed(slots, "data = {}[held]"),
                    *_stored(slots, "dst.output[owner * K + piece]"),
                ],
            ),
        ],
    )


def _relayed(slots: _Slots, take: str) -> list[str]:
    if not slots.count:
        return []
    room = f'src.scratch("relay", {slots.count})'
    return ["if held >= 0:", f"    {take.format(room)}"]


def _stored(slots: _Slots, target: str) -> list[str]:
    if not slots.count:
        return [f"{target} = data"]
    return [
        "if kept >= 0:",
        f'    dst.scratch("relay", {slots.count})[kept] = data',
        "else:",
        f"    {target} = data",
    ]


def _broadcast(schedule: Schedule, symmetry: Symmetry) -> Rows:
    demand = schedule.demand
    width = _width(schedule)
    entries = [(m.chunk, m.src, m.dst) for m in schedule.folded]
    return Rows(
        tables=(("MOVES", "which piece, from, to; by planned start", entries),),
        parameters=f", root: int = {demand.root}",
        body=[
            *_only_root(demand.root),
            "ranks[root].output[:] = ranks[root].input[:]",
            "for piece, src, dst in MOVES:",
            f"    low, high = piece * {width}, piece * {width} + {width}",
            "    source = ranks[src].input if src == root else ranks[src].output",
            "    ranks[dst].output[low:high] = source[low:high]",
        ],
    )


def _only_root(root: int) -> list[str]:
    return [
        f"if root != {root}:",
        f'    raise ValueError(f"made for root {root}, not {{root}}")',
    ]


def _width(schedule: Schedule) -> int:
    demand = schedule.demand
    whole = demand.network.num_ranks * demand.split
    if demand.pieces and whole % demand.pieces:
        raise CallError(
            f"{demand.pieces} pieces of {whole} chunks; want a divisor:"
            " choose split so that ranks x split is a multiple"
        )
    return whole // demand.pieces if demand.pieces else 1


def _scatter(schedule: Schedule, symmetry: Symmetry) -> Rows:
    demand = schedule.demand
    slots = _Slots(symmetry)
    entries = []
    for m in schedule.folded:
        owner, piece = divmod(m.chunk, demand.split)
        held = -1 if m.src == demand.root else slots.get(m.chunk, m.src)
        kept = -1 if m.dst == owner else slots.take(m.chunk, m.dst)
        entries.append((owner, piece, m.src, m.dst, held, kept))
    legend = "for whom, which piece, from, to, relay's slots there (-1: none)"
    return Rows(
        tables=(("MOVES", legend, entries),),
        parameters=f", root: int = {demand.root}",
        body=[
            *_only_root(demand.root),
            "whole = ranks[root].input",
            "ranks[root].output[:] = whole[root * K : root * K + K]",
            *_loop(
                symmetry,
                "for owner, piece, src_, dst_, held, kept in MOVES:",
                ["src", "dst"],
                [
                    "data = whole[owner * K + piece]",
                    *_relayed(slots, "data = {}[held]"),
                    *_stored(slots, "dst.output[piece]"),
                ],
            ),
        ],
    )


def _gather(schedule: Schedule, symmetry: Symmetry) -> Rows:
    demand = schedule.demand
    slots = _Slots(symmetry)
    entries = []
    for m in schedule.folded:
        owner, piece = divmod(m.chunk, demand.split)
        held = -1 if m.src == owner else slots.get(m.chunk, m.src)
        kept = -1 if m.dst == demand.root else slots.take(m.chunk, m.dst)
        entries.append((owner, piece, m.src, m.dst, held, kept))
    legend = "whose, which piece, from, to, relay's slots there (-1: none)"
    return Rows(
        tables=(("MOVES", legend, entries),),
        parameters=f", root: int = {demand.root}",
        body=[
            *_only_root(demand.root),
            "whole = ranks[root].output",
            "whole[root * K : root * K + K] = ranks[root].input[:]",
            *_loop(
                symmetry,
                "for owner, piece, src_, dst_, held, kept in MOVES:",
                ["src", "dst"],
                [
                    "data = ranks[owner].input[piece]",
                    *_relayed(slots, "data = {}[held]"),
                    *_stored(slots, "whole[owner * K + piece]"),
                ],
            ),
        ],
    )


def _sums(
    schedule: Schedule, symmetry: Symmetry, slots: _Slots | None
) -> list[tuple[Any, ...]]:
    """Return who adds up what: (chunk, rank, ((from, slot or leaf), ...), own slot).

    A rank adds when everything has come, just before it sends its sum on.
    """
    into: dict[tuple[int, int], list[Move]] = {}
    order: dict[tuple[int, int], None] = {}
    combining = [m for m in schedule.folded if m.combine]
    origin = _owners(schedule)
    for m in combining:
        into.setdefault((m.chunk, m.dst), []).append(m)
    for m in combining:
        if (m.chunk, m.src) in into:
            order[m.chunk, m.src] = None
    for m in combining:
        if m.dst == origin[m.chunk]:
            order.pop((m.chunk, m.dst), None)
            order[m.chunk, m.dst] = None
    rows = []
    for chunk, rank in order:
        parts = []
        for m in into[chunk, rank]:
            leaf = (chunk, m.src) not in into
            slot = -1 if leaf else slots.get(chunk, m.src) if slots else 0
            parts.append((m.src, slot))
        own = -1
        if rank != origin[chunk]:
            own = slots.take(chunk, rank) if slots else 0
        rows.append((chunk, rank, tuple(parts), own))
    return rows


def _owners(schedule: Schedule) -> Mapping[int, int]:
    return {c.index: c.origin for c in schedule.demand.chunks()}


def _reduce_scatter(schedule: Schedule, symmetry: Symmetry) -> Rows:
    k = schedule.demand.split
    slots = _Slots(symmetry)
    entries = [
        (chunk // k, chunk % k, rank, parts, own)
        for chunk, rank, parts, own in _sums(schedule, symmetry, slots)
    ]
    room = max(1, slots.count)
    legend = "whose, which piece, who adds, (from, slot of its sum or -1)..., own slot"
    return Rows(
        tables=(("SUMS", legend, entries),),
        body=[
            "def held(rank: Rank, at: int, slot: int):",
            f'    return rank.input[at] if slot < 0 else rank.scratch("sums", {room})[slot]',
            "",
            *_loop(
                symmetry,
                "for owner_, piece, dst_, parts, slot in SUMS:",
                ["owner", "dst"],
                [
                    "at = owner * K + piece",
                    f"terms = [held(ranks[{_turned(symmetry)}], at, s) for q, s in parts]",
                    "total = reduce(dst.input[at], terms)",
                    "if slot < 0:",
                    "    dst.output[piece] = total",
                    "else:",
                    f'    dst.scratch("sums", {room})[slot] = total',
                ],
            ),
        ],
    )


def _turned(symmetry: Symmetry) -> str:
    return "q" if symmetry.order == 1 else "image(q, turn)"


def _reduce(schedule: Schedule, symmetry: Symmetry) -> Rows:
    demand = schedule.demand
    width = _width(schedule)
    slots = _Slots(symmetry)
    entries = _sums(schedule, symmetry, slots)
    room = max(1, slots.count) * width
    return Rows(
        tables=(
            (
                "SUMS",
                "which piece, who adds, (from, slot of its sum or -1)..., own slot",
                entries,
            ),
        ),
        parameters=f", root: int = {demand.root}",
        body=[
            *_only_root(demand.root),
            f"W = {width}",
            "for piece, dst, parts, slot in SUMS:",
            "    at = slice(piece * W, piece * W + W)",
            "    terms = [ranks[dst].input[at]]",
            "    for q, s in parts:",
            f'        sums = ranks[q].scratch("sums", {room}) if s >= 0 else None',
            "        ready = slice(s * W, s * W + W)",
            "        terms.append(ranks[q].input[at] if sums is None else sums[ready])",
            "    if slot < 0:",
            "        ranks[dst].output[at] = reduce(terms)",
            "    else:",
            f'        sums = ranks[dst].scratch("sums", {room})',
            "        sums[slot * W : slot * W + W] = reduce(terms)",
        ],
    )


def _all_reduce(schedule: Schedule, symmetry: Symmetry) -> Rows:
    k = schedule.demand.split
    sums = [
        (chunk // k, chunk % k, rank, parts)
        for chunk, rank, parts, _ in _sums(schedule, symmetry, None)
    ]
    moves = [
        (m.chunk // k, m.chunk % k, m.src, m.dst)
        for m in schedule.folded
        if not m.combine
    ]
    q = _turned(symmetry)
    return Rows(
        tables=(
            ("SUMS", "whose, which piece, who adds, (from, 0: sum, -1: input)", sums),
            ("MOVES", "whose, which piece, from, to; by planned start", moves),
        ),
        body=[
            *_loop(
                symmetry,
                "for owner_, piece, dst_, parts in SUMS:",
                ["owner", "dst"],
                [
                    "at = owner * K + piece",
                    f"others = [(ranks[{q}], leaf) for q, leaf in parts]",
                    "terms = [r.input[at] if leaf else r.output[at] for r, leaf in others]",
                    "dst.output[at] = reduce(dst.input[at], terms)",
                ],
            ),
            *_loop(
                symmetry,
                "for owner_, piece, src_, dst_ in MOVES:",
                ["owner", "src", "dst"],
                [
                    "at = owner * K + piece",
                    "dst.output[at] = src.output[at]",
                ],
            ),
        ],
    )


BODIES: Mapping[str, Callable[[Schedule, Symmetry], Rows]] = {
    "all_gather": _all_gather,
    "all_reduce": _all_reduce,
    "all_to_all": _all_to_all,
    "broadcast": _broadcast,
    "gather": _gather,
    "reduce": _reduce,
    "reduce_scatter": _reduce_scatter,
    "scatter": _scatter,
}
