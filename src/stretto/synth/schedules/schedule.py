"""What is asked for and what is found: demands, moves and schedules.

Legend: N ranks, k split, S bytes of the full vector. Every chunk is 1/(N k) of S unless
parts are unequal. Moves are in program order: read one after another they are right;
replay and execution let them overlap as far as data and links allow.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from stretto.errors import CallError, UnknownNameError
from stretto.synth.bounds.bound import COLLECTIVES, ROOTED
from stretto.synth.network.model import Network
from stretto.synth.network.symmetry import Symmetry

__all__ = ["DataChunk", "Demand", "TimedMove", "TimedSchedule", "Wave"]


class DataChunk(NamedTuple):
    """One piece of data: who has it, who wants it, its share of S."""

    number: int
    origin: int
    """Who has it at first; when it is combined, who ends with the sum."""
    wanted: tuple[int, ...]
    share: Fraction


class TimedMove(NamedTuple):
    """One chunk over one way between two ranks, planned to start at a time."""

    start: Fraction
    chunk: int
    src: int
    dst: int
    links: tuple[int, ...]
    combine: bool = False


class Wave(NamedTuple):
    """A move that many chunks make, each one wave after the one before it."""

    move: TimedMove
    """Of the first chunk."""
    chunks: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """A collective to be synthesised: where, how finely cut, for how many bytes."""

    collective: str
    network: Network
    nbytes: int
    split: int = 1
    root: int = 0
    weights: tuple[int, ...] = ()
    """Relative sizes of the ranks' parts; empty means equal parts."""
    pieces: int = 0
    """Of broadcast and reduce: equal pieces of the vector; 0 means N k."""
    owners: tuple[int, ...] = ()
    """Of all_reduce: where each chunk's sum is complete first; empty: at its part's."""

    def __post_init__(self) -> None:
        """Refuse what cannot be meant."""
        if self.collective not in COLLECTIVES:
            raise UnknownNameError.among("collective", self.collective, COLLECTIVES)
        if self.nbytes < 1 or self.split < 1:
            raise CallError(
                f"synth {self.collective}: {self.nbytes} bytes, split {self.split};"
                " want both at least 1"
            )
        members = self.network.members
        if self.weights and len(self.weights) != len(members):
            raise CallError(
                f"synth {self.collective}: {len(self.weights)} weights;"
                f" want one for each of {len(members)} ranks"
            )
        if any(w < 1 for w in self.weights):
            raise CallError(
                f"synth {self.collective}: weights {self.weights};"
                " want whole numbers of at least 1"
            )
        if self.pieces and self.collective not in ("broadcast", "reduce"):
            raise CallError(f"synth {self.collective}: pieces={self.pieces}; want 0")
        if self.rooted and self.root not in members:
            raise CallError(f"root={self.root}; want one of {members}")

    @property
    def rooted(self) -> bool:
        """Return whether one of the ranks has or gets everything."""
        return self.collective in ROOTED

    @property
    def combines(self) -> bool:
        """Return whether contributions are added up."""
        return self.collective in ("all_reduce", "reduce_scatter", "reduce")

    def share(self, part: int) -> Fraction:
        """Return the share of S of one chunk of a member's part, by position."""
        count = len(self.network.members)
        if not self.weights:
            return Fraction(1, count * self.split)
        return Fraction(self.weights[part], sum(self.weights) * self.split)

    def chunks(self) -> Iterator[DataChunk]:
        """Yield every chunk, numbered as in the program."""
        members, k = self.network.members, self.split
        if self.pieces:
            for j in range(self.pieces):
                yield DataChunk(j, self.root, members, Fraction(1, self.pieces))
            return
        pairs = self.collective == "all_to_all"
        for i, r in enumerate(members):
            for j in range(k * (len(members) if pairs else 1)):
                index = i * k * (len(members) if pairs else 1) + j
                origin, wanted = r, members
                if pairs:
                    wanted = (members[j // k],)
                elif self.collective in ("broadcast", "reduce"):
                    origin = self.root
                elif self.collective == "gather":
                    wanted = (self.root,)
                elif self.collective == "scatter":
                    origin, wanted = self.root, (r,)
                elif self.owners:
                    origin = self.owners[index]
                yield DataChunk(
                    index, origin, wanted, self.share(j // k if pairs else i)
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedSchedule:
    """Moves that satisfy a demand."""

    demand: Demand
    moves: tuple[TimedMove, ...]
    generator: str = ""
    """Who found it, for the record."""
    symmetry: Symmetry | None = None
    folded: tuple[TimedMove, ...] = ()
    """The moves of representatives, whose images under `symmetry` are `moves`."""
    waves: tuple[Wave, ...] = ()
    """The folded moves as rows of a loop over waves, when they are so regular."""
    pace: Fraction = Fraction(0)
    """From one wave to the next, us."""
    listed: bool = False
    """Whether it is written move by move, since only that order keeps its time."""
    loose: bool = False
    """Whether loops may write it in another order: somebody simulates what they say."""

    def meetings(self) -> frozenset[tuple[int, int, int]]:
        """Return what two ranks send each other of one sum: chunk, from and to.

        Each sends what it had added up without the other, and both then have all.
        """
        sums = {(m.chunk, m.src, m.dst) for m in self.moves if m.combine}
        return frozenset(x for x in sums if (x[0], x[2], x[1]) in sums)
