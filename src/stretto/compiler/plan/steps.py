"""The steps of a plan: a closed table of moves, signals and waits."""

from __future__ import annotations

import enum
from typing import NamedTuple, TypeAlias

FLAG_BITS = 20
"""Of a flag, below the epoch: a signal's number, and how many steps a lane has, fit."""


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
Groups: TypeAlias = tuple[tuple[tuple[int, ...], ...], ...]
"""By rank and lane: how many steps run at once, one group after the other."""


def primitive(rank: int, step: Step) -> Primitive:
    """Return what people call a step of a rank."""
    match step:
        case Signal():
            return Primitive.SIGNAL
        case Wait():
            return Primitive.WAIT
    reads_packets = True in [src.packets for src in step.srcs]
    if len(step.srcs) > 1:
        return Primitive.REDUCE_PACKETS if reads_packets else Primitive.REDUCE
    if reads_packets:
        return Primitive.READ_PACKETS
    far = False
    for dst in step.dsts:
        if dst.packets:
            return Primitive.PUT_PACKETS
        far = far or dst.rank != rank
    if step.srcs[0].rank != rank:
        return Primitive.GET
    return Primitive.PUT if far else Primitive.COPY


def spell_step(rank: int, step: Step) -> str:
    """Return one step of a rank as it is printed."""
    match step:
        case Signal():
            tail = "" if step.release else " relaxed"
            return f"signal r{step.rank}.{step.lane} n={step.n}{tail}"
        case Wait():
            return f"wait r{step.rank}.{step.lane} n={step.n}"
    dsts = ", ".join([_loc(rank, d) for d in step.dsts])
    srcs = ", ".join([_loc(rank, s) for s in step.srcs])
    one = step.stop == step.start + 1
    atoms = f"@{step.start}" if one else f"@{step.start}:{step.stop}"
    tail = (" finish" if step.finish else "") + (f" #{step.op}" * (step.op >= 0))
    return f"{primitive(rank, step).value} {dsts} <- {srcs} {atoms}{tail}"


def _loc(rank: int, loc: Loc) -> str:
    owner, space, at, packets = loc
    tail = "]!" if packets else "]"
    if owner == rank:
        return f"{_SPACES[space]}[{at}{tail}"
    return f"r{owner}.{_SPACES[space]}[{at}{tail}"


_SPACES = [space.name.lower() for space in Space]
"""How each is printed."""
