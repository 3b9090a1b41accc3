"""Broadcast in steps and rounds: as many chunks as a flow over time lets through.

Every rank stands there once for each step; data wait for free and cross a link from one
step to the next, as many chunks as the step has rounds for. What flows from the root to
the last step of the rank that is hardest to reach bounds the chunks. A tree for each
chunk grows by the earliest transfer that leaves enough flow for all the trees still to
come. Ties are broken by chance, from the same seeds every time; a tree that gets stuck
is begun anew.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from fractions import Fraction

from stretto.synth.network.maxflow import FlowGraph
from stretto.synth.network.model import Network
from stretto.synth.schedules.schedule import TimedMove

__all__ = ["flooded", "most_chunks", "shapes"]

_ENDLESS = 1 << 40
_TRIES, _AGAIN = 60, 4  # whole plans, and trees of a plan, that are begun anew


class _Steps:
    """The network, unrolled over time."""

    def __init__(self, network: Network, root: int, rounds: Sequence[int]) -> None:
        steps = len(rounds)
        self._network, self.root, self._steps = network, root, steps
        self._flow = FlowGraph(network.num_ranks * (steps + 1))
        unit = min(k.rate for k in network.links)
        self.room: dict[tuple[int, int], int] = {}
        """By link and step: chunks that may still cross."""
        self._edge: dict[tuple[int, int], int] = {}
        for s, times in enumerate(rounds):
            for v in range(network.num_ranks):
                self._flow.add(self._node(v, s), self._node(v, s + 1), _ENDLESS)
            for e, k in enumerate(network.links):
                room = int(k.rate / unit) * times
                src, dst = self._node(k.src, s), self._node(k.dst, s + 1)
                self.room[e, s] = room
                self._edge[e, s] = self._flow.add(src, dst, room)
        self.others = [v for v in network.members if v != root]

    def _node(self, rank: int, step: int) -> int:
        return rank * (self._steps + 1) + step

    def reaches(self, rank: int, limit: int | None = None) -> int:
        """Return how many chunks the root can send to a rank in time."""
        self._flow.reset()
        source, sink = self._node(self.root, 0), self._node(rank, self._steps)
        return self._flow.solve(source, sink, limit)

    def take(self, link: int, step: int, left: int) -> bool:
        """Book a transfer, if `left` more chunks still reach everybody after it."""
        edge, room = self._edge[link, step], self.room[link, step]
        self._flow.change(edge, room - 1)
        nearest = self._network.links[link].dst
        if all(
            self.reaches(v, left) >= left
            for v in sorted(self.others, key=lambda v: v != nearest)
        ):
            self.room[link, step] = room - 1
            return True
        self._flow.change(edge, room)
        return False

    def release(self, link: int, step: int) -> None:
        """Give a transfer back."""
        self.room[link, step] += 1
        self._flow.change(self._edge[link, step], self.room[link, step])


def shapes(rounds: int, steps: int) -> Iterator[tuple[int, ...]]:
    """Yield every way to give each step a round or more."""
    for cuts in itertools.combinations(range(1, rounds), steps - 1):
        yield tuple(b - a for a, b in itertools.pairwise((0, *cuts, rounds)))


def most_chunks(network: Network, root: int, rounds: Sequence[int]) -> int:
    """Return how many chunks reach every rank when the steps have so many rounds."""
    unrolled = _Steps(network, root, rounds)
    return min(unrolled.reaches(v) for v in unrolled.others)


def flooded(
    network: Network, root: int, rounds: Sequence[int], chunks: int
) -> tuple[TimedMove, ...] | None:
    """Return the transfers that bring the chunks to every rank in time, or None."""
    if most_chunks(network, root, rounds) < chunks:
        return None
    for seed in range(_TRIES):
        unrolled, chance = _Steps(network, root, rounds), random.Random(seed)
        moves: list[TimedMove] = []
        for chunk in range(chunks):
            left = chunks - chunk - 1
            tries = (_tree(network, unrolled, left, chance) for _ in range(_AGAIN))
            tree = next((t for t in tries if t is not None), None)
            if tree is None:
                break
            for link, step in tree:
                k = network.links[link]
                moves.append(TimedMove(Fraction(step), chunk, k.src, k.dst, (link,)))
        else:
            return tuple(sorted(moves, key=lambda m: m.start))
    return None


def _tree(
    network: Network, unrolled: _Steps, left: int, chance: random.Random
) -> list[tuple[int, int]] | None:
    """Grow a tree for one chunk; give everything back where it cannot go on."""
    since = {unrolled.root: 0}
    taken: list[tuple[int, int]] = []
    while not since.keys() >= set(unrolled.others):
        for link, step in _ways(network, unrolled, since, chance):
            if unrolled.take(link, step, left):
                taken.append((link, step))
                since[network.links[link].dst] = step + 1
                break
        else:
            for link, step in taken:
                unrolled.release(link, step)
            return None
    return taken


def _ways(
    network: Network, unrolled: _Steps, since: dict[int, int], chance: random.Random
) -> Iterator[tuple[int, int]]:
    """Yield the transfers that would bring a chunk to another rank, earliest first."""
    found = [
        (link, step)
        for (link, step), room in unrolled.room.items()
        if room
        for k in (network.links[link],)
        if k.dst not in since and since.get(k.src, step + 1) <= step
    ]
    chance.shuffle(found)
    yield from sorted(found, key=lambda way: way[1])
