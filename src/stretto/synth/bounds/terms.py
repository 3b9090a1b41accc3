"""Lower bounds as terms: what must pass which links, and what proves it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from stretto.synth.bounds.windows import Window, filled
from stretto.synth.network.model import Network

__all__ = ["Asked", "BoundTerm", "gbps", "spell"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundTerm:
    """One lower bound: what must pass some windows of links, or how far a rank is."""

    why: str
    """The certificate, in words."""
    proof: Mapping[str, Any]
    """The certificate, for who checks it: see `Bounds.certificate`."""
    need: Fraction = Fraction(0)
    """Of every byte of the size, what must pass."""
    windows: tuple[Window, ...] = ()
    """What it can pass, those that are open longest first."""
    late: Fraction = Fraction(0)
    """What it takes at any size, us."""

    @property
    def algbw(self) -> Fraction | None:
        """Return the rate that no size exceeds, GB/s; None: only latency counts."""
        rates = sum((rate for rate, _ in self.windows), Fraction(0))
        return rates / self.need if self.need else None

    def us(self, nbytes: int) -> Fraction:
        """Return the bound for a size."""
        if not self.need:
            return self.late
        return filled(nbytes * self.need / 1000, self.windows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is bounded: a collective on a network."""

    collective: str
    network: Network
    root: int
    units: Mapping[int, int]
    """The relative sizes of the members' parts."""


def gbps(rate: Fraction) -> str:
    """Return a rate as people write it."""
    return f"{float(rate):.6g} GB/s"


def spell(ranks: Sequence[int]) -> str:
    """Return some ranks in words, not too many."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > 1 and list(ranks) == list(range(ranks[0], ranks[-1] + 1)):
        return f"ranks {ranks[0]} to {ranks[-1]}"
    return f"ranks {', '.join(map(str, ranks[:8]))}{'...' if len(ranks) > 8 else ''}"
