"""The ways that a sketch leaves open on one network, and who may stand for whom."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from stretto.synth.network.model import Network, SwitchPath
from stretto.synth.schedules.schedule import DataChunk

__all__ = ["OpenHops", "Rule"]

Rule = Callable[[int, SwitchPath], bool]
"""Whether the data of a rank may take a hop."""


@dataclass(slots=True, kw_only=True)
class OpenHops:
    """Rules bound to a network; called with a chunk and a hop, says whether it may."""

    network: Network
    rules: Mapping[str, Rule]
    """By what they are called in a sketch."""
    slack: int | None = None
    """How many hops more than needed; None: any."""
    _hops: dict[int, list[SwitchPath]] = field(default_factory=dict)
    _near: dict[int, frozenset[tuple[int, ...]]] = field(default_factory=dict)
    _leaving: list[list[int]] = field(default_factory=list)

    def __call__(self, chunk: DataChunk, hop: SwitchPath) -> bool:
        """Return whether a chunk may take a hop."""
        return self.open(chunk.origin, hop)

    def open(self, origin: int, hop: SwitchPath) -> bool:
        """Return whether the data of a rank may take a hop."""
        if self.broken(origin, hop):
            return False
        return self.slack is None or hop.links in self._nearby(origin)

    def broken(self, origin: int, hop: SwitchPath) -> list[str]:
        """Return the rules that forbid a hop to the data of a rank."""
        return [name for name, rule in self.rules.items() if not rule(origin, hop)]

    def hops(self, rank: int) -> list[SwitchPath]:
        """Return the hops of a rank, whatever the rules."""
        if not self._leaving:
            self._leaving = self.network.leaving()
        if rank not in self._hops:
            self._hops[rank] = list(self.network.hops(rank, self._leaving))
        return self._hops[rank]

    def layers(self, origin: int) -> dict[int, int]:
        """Return how many hops from a rank its data need to each that they reach."""
        far = {origin: 0}
        queue = [origin]
        for v in queue:
            for h in self.hops(v):
                if h.dst not in far and not self.broken(origin, h):
                    far[h.dst] = far[v] + 1
                    queue.append(h.dst)
        return far

    def _nearby(self, origin: int) -> frozenset[tuple[int, ...]]:
        """Return the hops on ways at most `slack` longer than the shortest."""
        if origin not in self._near:
            far, slack = self.layers(origin), self.slack or 0
            self._near[origin] = frozenset(
                h.links
                for v in far
                for h in self.hops(v)
                if h.dst in far and far[v] + 1 <= far[h.dst] + slack
            )
        return self._near[origin]

    def preserved(self, moved: Sequence[int]) -> bool:
        """Return whether a permutation of ranks maps what is open to what is open.

        Rules know places and whether boxes are the same, so three boxes show it.
        """
        box = self.network.box
        shown = sorted(set(box))[:3]
        few = [r for r in range(self.network.num_ranks) if box[r] in shown]
        if any(
            (box[a] == box[b]) != (box[moved[a]] == box[moved[b]])
            for a, b in self._pairs(few)
        ):
            return False
        ends = [(a, b) for a in few for b in few if a != b]
        images = {(a, b): (moved[a], moved[b]) for a, b in ends}
        known: dict[tuple[int, int], SwitchPath] = {}
        for r in {v for pair in [*ends, *images.values()] for v in pair}:
            known |= {(h.src, h.dst): h for h in self.hops(r)}
        return all(
            self._allows(o, known.get(pair)) == self._allows(moved[o], known.get(image))
            for o in few
            if box[o] == shown[0]
            for pair, image in images.items()
        )

    def _allows(self, origin: int, hop: SwitchPath | None) -> bool:
        return hop is not None and not self.broken(origin, hop)

    @staticmethod
    def _pairs(ranks: list[int]) -> Iterator[tuple[int, int]]:
        return ((a, b) for a in ranks for b in ranks)
