"""A program for a collective on a machine: one tree a chunk, along the machine's links.

A chunk goes down its tree to be shared, and up to be summed; which tree, each chunk
decides for itself. A candidate is proved as every program is, and then simulated.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from stretto import topology
from stretto.compiler.lower import lower
from stretto.compiler.plan import Schedule
from stretto.compiler.verify import verify, verify_plan
from stretto.errors import CallError, ParseError
from stretto.executors import sim
from stretto.program.lang import algorithm
from stretto.search.evolve.problem import Problem, Verdict
from stretto.search.problems._machines import said_of
from stretto.synth import bound, from_machine
from stretto.synth import written as as_written
from stretto.topology import Costs

__all__ = ["OFFER", "ProgramProblem", "Trees"]

Trees = tuple[tuple[int, ...], ...]
"""For each chunk, from whom each rank has it; the root from itself."""

_COLLECTIVES = ("all_gather", "all_reduce")
_ITEM = 4


class ProgramProblem(Problem[Trees]):
    """Search trees."""

    name: ClassVar[str] = "program"
    rungs = ("count", "simulate")

    def __init__(
        self,
        collective: str,
        machine: str = topology.EXAMPLE,
        size: int = 1 << 20,
        split: int = 1,
        schedule: str = "",
    ) -> None:
        """Search a collective of `size` bytes a rank on a machine.

        Without a schedule, links serve in the program's order, if a step costs nothing
        there; else as many blocks move as the size can use.
        """
        if collective not in _COLLECTIVES:
            raise CallError(
                f"collective={collective!r}: want {', '.join(_COLLECTIVES)}"
            )
        if not 1 <= split <= 16:
            raise CallError(f"split={split}: want 1 to 16 chunks a part")
        self._machine = topology.load(machine)
        self.collective, self._size, self._split = collective, size, split
        if not schedule and self._machine.costs != Costs(background_puts=True):
            schedule = f"bulk blocks={min(64, max(1, size >> 11))}"
        self._schedule = Schedule.parse(schedule) if schedule else None
        n = self._ranks = self._machine.num_ranks
        network = from_machine(self._machine)
        self._bound_us = float(bound(collective, network).us(size))
        links = self._machine.links
        self._rates = [max(1e-9, k.bandwidth_gbytes_per_s * 1e3) for k in links]
        pairs = [(a, b) for a in range(n) for b in range(n) if a != b]
        self._links = {(a, b): self._machine.route(a, b).links for a, b in pairs}
        self._late = {
            p: sum(links[k].latency_us for k in self._links[p]) for p in pairs
        }
        fewest = min(map(len, self._links.values()))
        self._near = {
            a: [b for b in range(n) if b != a and len(self._links[a, b]) == fewest]
            or [b for b in range(n) if b != a]
            for a in range(n)
        }

    @property
    def said(self) -> Mapping[str, str]:
        """Return what was given."""
        return {
            "collective": self.collective, "machine": said_of(self._machine),
            "size": str(self._size), "split": str(self._split),
            "schedule": str(self._schedule),
        }  # fmt: skip

    def seeds(self) -> Sequence[Trees]:
        """Return: everyone to everyone at once; in a ring; random ones."""
        n, rng = self._ranks, random.Random(1)
        chunks = range(n * self._split)
        star = tuple(tuple(c // self._split for _ in range(n)) for c in chunks)
        ring = tuple(
            tuple(r if r == c // self._split else (r - 1) % n for r in range(n))
            for c in chunks
        )
        return [star, ring, *(self.fresh(rng) for _ in range(6))]

    def fresh(self, rng: random.Random) -> Trees:
        """Return random trees along near links."""
        return tuple(self._tree(c // self._split, rng) for c in self._chunks)

    @property
    def _chunks(self) -> range:
        return range(self._ranks * self._split)

    def _tree(self, root: int, rng: random.Random) -> tuple[int, ...]:
        parent = {root: root}
        while len(parent) < self._ranks:
            ways = [(a, b) for a in parent for b in self._near[a] if b not in parent]
            if not ways:
                ways = [
                    (a, b)
                    for a in parent
                    for b in range(self._ranks)
                    if b not in parent
                ]
            a, b = rng.choice(ways)
            parent[b] = a
        return tuple(parent[r] for r in range(self._ranks))

    def changes(self) -> Sequence[str]:
        """Return the ways to change trees."""
        return "relieve", "move", "regrow", "swap", "turn", "cross"

    def change(self, way: str, parents: Sequence[Trees], rng: random.Random) -> Trees:
        """Return changed trees: a rank has a chunk from another, a tree is new..."""
        first, second = parents
        made = list(first)
        at = rng.randrange(len(made))
        if way == "cross":
            for i in range(len(made)):
                made[i] = second[i] if rng.random() < 0.5 else made[i]
        elif way == "regrow":
            made[at] = self._tree(at // self._split, rng)
        elif way == "turn":  # all chunks as this one, from their own roots
            for i in range(len(made)):
                made[i] = _turned(made[at], (i // self._split - at // self._split))
        elif way == "swap":
            made[at] = second[at]
        elif way == "relieve":
            for _ in range(rng.choice((1, 2, 4, 8))):
                self._relieve(made, rng)
        else:
            for _ in range(rng.choice((1, 1, 2, 4))):
                at = rng.randrange(len(made))
                made[at] = self._moved(made[at], rng)
        return tuple(made)

    def _relieve(self, made: list[tuple[int, ...]], rng: random.Random) -> None:
        """Whoever has a chunk over the busiest link has it from another rank."""
        busy = self._busy(made)
        most = max(busy.values())
        link = rng.choice([k for k in busy if busy[k] == most])
        using = [
            (at, b)
            for at, tree in enumerate(made)
            for b, a in enumerate(tree)
            if a != b and link in self._links[a, b]
        ]
        at, rank = rng.choice(using)
        made[at] = self._moved(made[at], rng, rank)

    def _moved(
        self, tree: tuple[int, ...], rng: random.Random, rank: int = -1
    ) -> tuple[int, ...]:
        if rank < 0:
            rank = rng.choice([r for r in range(self._ranks) if tree[r] != r])
        new = rng.choice(self._near[rank])
        at = new
        while tree[at] != at:  # nobody has it from one below
            if at == rank:
                return tree
            at = tree[at]
        return tuple(new if r == rank else p for r, p in enumerate(tree))

    def spell(self, candidate: Trees) -> str:
        """Return trees as text: for each chunk, from whom each rank has it."""
        return " ".join(",".join(map(str, tree)) for tree in candidate)

    def parse(self, text: str) -> Trees:
        """Return the trees of a text."""
        try:
            made = tuple(tuple(map(int, word.split(","))) for word in text.split())
        except ValueError:
            raise ParseError(
                f"{text[:80]!r}: want numbers of ranks, such as 0,0,1"
            ) from None
        n = self._ranks
        if len(made) != len(self._chunks) or any(len(tree) != n for tree in made):
            raise ParseError(f"want {len(self._chunks)} trees of {n} ranks each")
        for chunk, tree in enumerate(made):
            root = chunk // self._split
            for rank in range(n):
                at, steps = rank, 0
                while at != root and 0 <= at < n and steps < n:
                    at, steps = tree[at], steps + 1
                if at != root or tree[root] != root:
                    raise ParseError(
                        f"chunk {chunk}: rank {rank} never has it from {root}"
                    )
        return made

    def judge(self, candidate: Trees, rung: int, *, fresh: int) -> Verdict:
        """Return the time: counted by links, or proved and simulated."""
        if rung == 0:
            return Verdict.of(self._counted(candidate))
        written = verify(self.algorithm(candidate).build(self._ranks))
        if self._schedule is None:
            us = as_written(written, self._machine, nbytes=self._size).time_us
        else:
            plan = verify_plan(lower(written, self._schedule), written)
            us = sim.simulate(
                plan, self._machine, nbytes=self._size, itemsize=_ITEM
            ).time_us
        return Verdict.of(us, gap=us / self._bound_us - 1)

    def held_out(self, candidate: Trees) -> Mapping[str, float]:
        """Return the time, the bound that no program beats, and the gap."""
        us = self.judge(candidate, 1, fresh=0).cost
        return {"us": us, "bound_us": self._bound_us, "gap": us / self._bound_us - 1}

    def _busy(self, trees: Sequence[tuple[int, ...]]) -> dict[int, float]:
        """Return how long each link is busy."""
        parts = self._split if self.collective == "all_gather" else len(trees)
        nbytes = self._size / parts
        busy: dict[int, float] = {}
        for tree in trees:
            for b, a in enumerate(tree):
                if a != b:
                    for k in self._links[a, b]:
                        busy[k] = busy.get(k, 0.0) + nbytes / self._rates[k]
        return busy

    def _counted(self, trees: Trees) -> float:
        """Return a time from busy links and the deepest tree alone.

        The busiest link counts most, but not alone: so what relieves one of several
        that are as busy is better.
        """
        deepest = 0.0
        for tree in trees:
            late = [0.0] * self._ranks
            for a, b in _down(tree):
                late[b] = late[a] + self._late[a, b]
            deepest = max(deepest, *late)
        busy = float(sum(b**16 for b in self._busy(trees).values()) ** (1 / 16))
        return (2 if self.collective == "all_reduce" else 1) * (busy + deepest)

    def algorithm(self, trees: Trees) -> Any:
        """Return the program of trees."""
        split, collective = self._split, self.collective

        @algorithm(f"{collective}/searched", split=split)
        def searched(ranks: Any) -> None:
            down = [list(_down(tree)) for tree in trees]
            if collective == "all_gather":
                for chunk in range(len(trees)):
                    r = ranks[chunk // split]
                    r.output[chunk] = r.input[chunk % split]
            elif collective == "all_reduce":
                for r in ranks:
                    r.output[:] = r.input[:]
            if collective == "all_reduce":
                for chunk, a, b in _in_turn([d[::-1] for d in down]):
                    ranks[a].output[chunk] += ranks[b].output[chunk]
            for chunk, a, b in _in_turn(down):
                ranks[b].output[chunk] = ranks[a].output[chunk]

        return searched


def _down(tree: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """Yield who sends to whom, the nearest to the root first."""
    children: dict[int, list[int]] = {}
    for rank, parent in enumerate(tree):
        if rank != parent:
            children.setdefault(parent, []).append(rank)
    level = [next(r for r, p in enumerate(tree) if r == p)]
    while level:
        below = []
        for rank in level:
            for child in children.get(rank, ()):
                yield rank, child
                below.append(child)
        level = below


def _in_turn(
    moves: Sequence[Sequence[tuple[int, int]]],
) -> Iterator[tuple[int, int, int]]:
    """Yield the moves of all chunks: the first of each, then the second of each."""
    for i in range(max(map(len, moves))):
        for chunk, one in enumerate(moves):
            if i < len(one):
                yield chunk, *one[i]


def _turned(tree: tuple[int, ...], by: int) -> tuple[int, ...]:
    """Return a tree with every rank's number so much larger, round."""
    n = len(tree)
    return tuple((tree[(r - by) % n] + by) % n for r in range(n))


OFFER = ProgramProblem
