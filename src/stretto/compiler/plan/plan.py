"""A plan: who does what when, with every signal and wait, for one tile.

A rank's lanes run their steps in order. Programs only move and combine whole chunks, so
a plan is run on slices: block b, in tile-iteration t, executes all of it on its own
slice of every atom. (An atom is a run of chunks that are always moved together.) Every
tile-iteration of a block is one *epoch*; staging is double-buffered by its parity.

A channel is an ordered pair of lanes. The n-th signal of an epoch on a channel carries
n, from 1; a wait names the n it needs. Signals are counted, never reset.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stretto.compiler.plan.schedule import Schedule
from stretto.compiler.plan.steps import Move, Step, spell_step
from stretto.errors import BoundsError, is_library
from stretto.program import collectives
from stretto.program.collectives import Collective, Shape
from stretto.program.ir import (
    Handwritten,
    Params,
    freeze,
    members_of,
    spelled,
    text_page,
)


class BufferRun(NamedTuple):
    """Positions `start` to `stop` of a buffer hold atoms `atom`, `atom + 1`, ..."""

    start: int
    stop: int
    atom: int


class Way(NamedTuple):
    """What an operation of the program takes from a rank to another passes switches."""

    op: int
    src: int
    dst: int
    switches: tuple[str, ...]


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
    inputs: Sequence[tuple[BufferRun, ...]] = ()
    """Each rank's input, as runs of atoms."""
    outputs: Sequence[tuple[BufferRun, ...]] = ()
    stage_units: tuple[int, ...] = ()
    """Units of staging that each rank owns, in one epoch."""
    ranks: Sequence[tuple[tuple[Step, ...], ...]] = ()
    """Steps by rank and lane; of plans that were kept, read when they are asked for."""
    hosts: tuple[int, ...] = ()
    """The host of each rank, numbered as they come; empty: one host has all of them.
    A step to a rank of another host is *far*: a put, a signal or a wait."""
    ways: tuple[Way, ...] = ()
    """Which switches data pass, where the program says so."""
    places: tuple[str, ...] = field(default=(), compare=False)
    """The author's line of each operation of the program, for messages."""
    by_hand: Handwritten | None = field(default=None, compare=False)
    """A kernel of somebody's own, which does the same on GPUs."""
    _digest: list[str] = field(
        default_factory=list, init=False, compare=False, repr=False
    )
    """The digest, once it is known; a plan with changes has none."""

    def __post_init__(self) -> None:
        """Refuse units of staging that no rank can own."""
        for rank, units in enumerate(self.stage_units):
            if type(units) is not int or units < 0:
                raise BoundsError(
                    f"{self.name}: rank {rank} has {units!r} units of staging; want a "
                    f"whole number, at least 0"
                )
        if self.hosts and self.hosts != settled_hosts(self.hosts, self.num_ranks):
            raise BoundsError(
                f"{self.name}: hosts {self.hosts[:16]} of {self.num_ranks} ranks; want "
                f"the host of each, numbered from 0 as they come, and more than one"
            )

    def is_far(self, rank: int, other: int) -> bool:
        """Return whether two ranks are on different hosts."""
        return bool(self.hosts) and self.hosts[rank] != self.hosts[other]

    @property
    def num_members(self) -> int:
        """Return how many ranks contribute: what an average divides by."""
        return len(members_of(self.num_ranks, self.params))

    @property
    def kind(self) -> Collective:
        """Return what the collective says of its buffers, parts and promise."""
        return collectives.get(self.collective)

    @property
    def shape(self) -> Shape:
        """Return what `kind` is asked with."""
        return Shape.of(self)

    def symbol_sizes(self, counts: ArrayLike, itemsize: int) -> NDArray[np.int64]:
        """Return the elements of every symbol of a call of these counts."""
        return self.kind.symbol_sizes(self.shape, np.asarray(counts), itemsize)

    @property
    def bus_factor(self) -> float:
        """Return bus over algorithm bandwidth of its collective."""
        return collectives.bus_factor(self.collective, self.num_members)

    @property
    def summary(self) -> str:
        """Return what it is, in one line."""
        place = " in place" if self.in_place else ""
        hosts = f" on {max(self.hosts) + 1} hosts" if self.hosts else ""
        return f"{self.name} for {self.num_ranks} ranks{hosts}, {self.schedule}{place}"

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

    def users_place(self, step: Step) -> str:
        """Return that line when a user wrote it; nothing when the library did."""
        place = self.place(step)
        return "" if is_library(place) else place

    def __hash__(self) -> int:
        """Hash what the text says."""
        return hash((self.name, self.num_ranks, self.schedule, self.ranks))

    @property
    def digest(self) -> str:
        """Return the identity of the plan: a hash of its text."""
        if not self._digest:
            self.known_as(hashlib.sha256(str(self).encode()).hexdigest()[:12])
        return self._digest[0]

    def known_as(self, digest: str) -> None:
        """Take the digest that this very text is known to have."""
        self._digest[:] = [digest]

    def __repr__(self) -> str:
        """Return what it is, in one line; `str` is all of it."""
        return f"<Plan {self.summary}>"

    def __str__(self) -> str:
        """Return the text form, which `plan.parse_plan` reads back."""
        return "\n".join(_lines(self)) + "\n"

    def _repr_html_(self) -> str:
        """Return what notebooks show: what it is, and its first lines."""
        return text_page(self.summary, str(self))


def _lines(plan: Plan) -> Iterator[str]:
    words = [f"plan {plan.name} collective={plan.collective}"]
    words += [f"ranks={plan.num_ranks} split={plan.split}"]
    words += [f"{k}={spelled(v)}" for k, v in sorted(plan.params.items())]
    yield " ".join(words)
    yield f"schedule {plan.schedule}{' in_place' if plan.in_place else ''}"
    if plan.hosts:
        yield "hosts" + "".join(f" {host}x{many}" for host, many in _counted(plan))
    yield "atoms" + "".join(f" {a}:{b}" for a, b in plan.atoms)
    for op, src, dst, switches in plan.ways:
        yield f"way #{op} r{src} r{dst} {'>'.join(switches) or '-'}"
    for rank, lanes in enumerate(plan.ranks):
        yield (
            f"rank {rank} input{_runs(plan.inputs[rank])}"
            f" output{_runs(plan.outputs[rank])} stage {plan.stage_units[rank]}"
        )
        yield from spell_lanes(rank, lanes)


def spell_lanes(rank: int, lanes: Sequence[Sequence[Step]]) -> Iterator[str]:
    """Yield the lines of a rank's lanes and steps."""
    for lane, steps in enumerate(lanes):
        yield f"  lane {lane}"
        for step in steps:
            yield f"    {spell_step(rank, step)}"


def _counted(plan: Plan) -> Iterator[tuple[int, int]]:
    """Yield hosts with the number of ranks, one after the other, that they have."""
    for host, ranks in itertools.groupby(plan.hosts):
        yield host, len(list(ranks))


def settled_hosts(hosts: Sequence[Hashable], num_ranks: int) -> tuple[int, ...]:
    """Return the host of each rank, numbered as they come; empty when it is one.

    >>> settled_hosts(["b", "b", "a"], 3)
    (0, 0, 1)
    """
    if len(hosts) not in (0, num_ranks):
        raise BoundsError(
            f"{len(hosts)} hosts given for {num_ranks} ranks; want each's"
        )
    numbers: dict[Hashable, int] = {}
    found = tuple(numbers.setdefault(host, len(numbers)) for host in hosts)
    return found if len(numbers) > 1 else ()


def _runs(runs: tuple[BufferRun, ...]) -> str:
    return "".join(f" {r.start}:{r.stop}@{r.atom}" for r in runs)
