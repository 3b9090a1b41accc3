"""Composition by hierarchy: between boxes first, then inside them.

On a cluster whose boxes are joined place by place (rails), data cross only from their
owner to the same place of every other box, and spread inside a box only from there.
That leaves one way to every rank, so a thousand ranks are scheduled in seconds; what is
inside a box overlaps with what is still on the rails.
"""

from __future__ import annotations

from collections.abc import Callable

from stretto.synth.network.model import Hop, Network
from stretto.synth.schedules.schedule import Chunk

__all__ = ["by_levels"]


def by_levels(network: Network) -> Callable[[Chunk, Hop], bool] | None:
    """Return which hops a chunk may take, or None when places are not joined."""
    box = network.box
    boxes = sorted(set(box))
    first = {b: box.index(b) for b in boxes}
    sizes = {box.count(b) for b in boxes}
    if len(boxes) < 2 or len(sizes) > 1:
        return None
    leaving = network.leaving()
    place = [r - first[box[r]] for r in range(network.num_ranks)]
    for r in network.members:
        reached = {h.dst for h in network.hops(r, leaving)}
        same = {first[b] + place[r] for b in boxes} - {r}
        inside = {v for v in network.members if box[v] == box[r]} - {r}
        if not same | inside <= reached:
            return None

    def allowed(chunk: Chunk, hop: Hop) -> bool:
        if place[hop.src] != place[chunk.origin]:
            return False
        if box[hop.src] == box[hop.dst]:
            return True
        return hop.src == chunk.origin and place[hop.dst] == place[hop.src]

    return allowed
