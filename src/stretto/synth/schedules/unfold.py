"""From representatives to everybody: the images of moves under a symmetry."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from stretto.synth.network.symmetry import Symmetry
from stretto.synth.schedules.schedule import Demand, TimedMove, TimedSchedule

__all__ = ["image_chunk", "images", "representatives", "unfold"]


def image_chunk(demand: Demand, chunk: int, nodes: tuple[int, ...]) -> int:
    """Return where a permutation sends a chunk."""
    members, k = demand.network.members, demand.split
    place = {r: i for i, r in enumerate(members)}
    part, j = divmod(chunk, k)
    if demand.collective == "all_to_all":
        src, dst = divmod(part, len(members))
        image = place[nodes[members[src]]] * len(members) + place[nodes[members[dst]]]
        return image * k + j
    return place[nodes[members[part]]] * k + j


def representatives(demand: Demand, symmetry: Symmetry) -> list[int]:
    """Return the chunks that start at representative ranks."""
    kept = set(symmetry.representatives)
    return [c.number for c in demand.chunks() if c.origin in kept]


def unfold(
    demand: Demand, moves: Iterable[TimedMove], symmetry: Symmetry, generator: str
) -> TimedSchedule:
    """Return the schedule of all images, in order of their planned starts.

    What a rank outside the group gets and does not pass on is left out.
    """
    order = sorted(moves, key=lambda m: (m.start, m.chunk, m.src, m.dst))
    folded = _needed(order, demand.network.members)
    return TimedSchedule(
        demand=demand,
        moves=tuple(images(demand, folded, symmetry)),
        generator=generator,
        symmetry=symmetry,
        folded=folded,
    )


def images(
    demand: Demand, folded: Iterable[TimedMove], symmetry: Symmetry
) -> Iterator[TimedMove]:
    """Yield every move with its images, in the order of the moves."""
    for m in folded:
        for nodes, links in zip(symmetry.nodes, symmetry.links, strict=True):
            yield TimedMove(
                m.start,
                image_chunk(demand, m.chunk, nodes),
                nodes[m.src],
                nodes[m.dst],
                tuple(links[i] for i in m.links),
                m.combine,
            )


def _needed(
    order: Sequence[TimedMove], members: Iterable[int]
) -> tuple[TimedMove, ...]:
    wanted, passed_on = set(members), set[tuple[int, int]]()
    kept = []
    for move in reversed(order):
        if move.dst in wanted or (move.dst, move.chunk) in passed_on:
            passed_on.add((move.src, move.chunk))
            kept.append(move)
    return tuple(reversed(kept))
