"""A plan: who does what when, with every signal and wait, for one tile.

A rank's lanes run their steps in order. Programs only move and combine whole chunks, so
a plan is run on slices: block b, in tile-iteration t, executes all of it on its own
slice of every atom. (An atom is a run of chunks that are always moved together.) Every
tile-iteration of a block is one *epoch*; staging is double-buffered by its parity.

A channel is an ordered pair of lanes. The n-th signal of an epoch on a channel carries
n, from 1; a wait names the n it needs. Signals are counted, never reset.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from stretto.ir import Params, freeze
from stretto.plan.schedule import Schedule

__all__ = [
    "BufferRun",
    "Loc",
    "Move",
    "Plan",
    "Primitive",
    "Signal",
    "Space",
    "Step",
    "Wait",
    "primitive",
]


class Space(enum.IntEnum):
    """Where a location lies."""

    INPUT = 0
    OUTPUT = 1
    STAGE = 2


class Primitive(enum.Enum):
    """What a step is, as people call it."""

    COPY = "copy"
    REDUCE = "reduce"
    PUT = "put"
    PUT_PACKETS = "put_packets"
    READ_PACKETS = "read_packets"
    REDUCE_PACKETS = "reduce_packets"
    GET = "get"
    SIGNAL = "signal"
    WAIT = "wait"


class Loc(NamedTuple):
    """A place for the atoms of a move: a position in a buffer of a rank.

    Positions count atoms in input and output. In staging they count *units*: room for
    one tile of one atom. A location in packets carries its own announcement: writing it
    tells, and reading it waits.
    """

    rank: int
    space: Space
    pos: int
    packets: bool = False


class Move(NamedTuple):
    """Store the combination of the sources, left to right, in every destination."""

    dsts: tuple[Loc, ...]
    srcs: tuple[Loc, ...]
    start: int
    """First atom; operands hold atoms `start` to `stop` in consecutive positions."""
    stop: int
    finish: bool = False
    """Whether the value is final: outputs get it divided when the operator is avg."""
    op: int = -1
    """The program's operation that this serves, for messages."""


class Signal(NamedTuple):
    """Tell a peer's lane that everything before this is done.

    A signal that does not `release` says only that this lane got here: it orders what
    was read before it, and promises nothing about data written.
    """

    rank: int
    lane: int
    n: int
    release: bool = True


class Wait(NamedTuple):
    """Wait for the n-th signal of this epoch from a peer's lane."""

    rank: int
    lane: int
    n: int


Step: TypeAlias = Move | Signal | Wait


class BufferRun(NamedTuple):
    """Positions `start` to `stop` of a buffer hold atoms `atom`, `atom + 1`, ..."""

    start: int
    stop: int
    atom: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The executable form of a program under a schedule, for all ranks."""

    name: str
    collective: str
    num_ranks: int
    split: int = 1
    params: Params = field(default_factory=lambda: freeze({}))
    schedule: Schedule = field(default_factory=Schedule)
    in_place: bool = False
    """Whether the plan may be called with its output in its input."""
    atoms: tuple[tuple[int, int], ...] = ()
    """Each atom's symbols, from and to: its size is the sum of theirs."""
    inputs: tuple[tuple[BufferRun, ...], ...] = ()
    """Each rank's input, as runs of atoms."""
    outputs: tuple[tuple[BufferRun, ...], ...] = ()
    stage_units: tuple[int, ...] = ()
    """Units of staging that each rank owns, in one epoch."""
    ranks: tuple[tuple[tuple[Step, ...], ...], ...] = ()
    """Steps by rank and lane."""
    places: tuple[str, ...] = field(default=(), compare=False)
    """The author's line of each operation of the program, for messages."""

    def steps(self) -> Iterator[tuple[int, int, int, Step]]:
        """Yield rank, lane, index and step."""
        for rank, lanes in enumerate(self.ranks):
            for lane, steps in enumerate(lanes):
                for index, step in enumerate(steps):
                    yield rank, lane, index, step

    def place(self, step: Step) -> str:
        """Return the author's line that a step serves, or nothing."""
        op = step.op if isinstance(step, Move) else -1
        return self.places[op] if 0 <= op < len(self.places) else ""

    def __hash__(self) -> int:
        """Hash what the text says."""
        return hash((self.name, self.num_ranks, self.schedule, self.ranks))

    @property
    def digest(self) -> str:
        """Return the identity of the plan: a hash of its text."""
        return hashlib.sha256(str(self).encode()).hexdigest()[:12]

    def __str__(self) -> str:
        """Return the text form, which `plan.parse_plan` reads back."""
        from stretto.plan.text import print_plan

        return print_plan(self)


def primitive(rank: int, step: Step) -> Primitive:
    """Return what people call a step of a rank."""
    match step:
        case Signal():
            return Primitive.SIGNAL
        case Wait():
            return Primitive.WAIT
    reads_packets = any(src.packets for src in step.srcs)
    if len(step.srcs) > 1:
        return Primitive.REDUCE_PACKETS if reads_packets else Primitive.REDUCE
    if reads_packets:
        return Primitive.READ_PACKETS
    if any(dst.packets for dst in step.dsts):
        return Primitive.PUT_PACKETS
    if step.srcs[0].rank != rank:
        return Primitive.GET
    if any(dst.rank != rank for dst in step.dsts):
        return Primitive.PUT
    return Primitive.COPY
