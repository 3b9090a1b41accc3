"""First come, first served, anywhere: what a cluster without a placement does."""

from __future__ import annotations

from stretto.network.schedulers.policies.packed import Packed

__all__ = ["OFFER"]


class Scattered(Packed):
    """The same jobs as of `packed`, on ranks drawn at random."""

    name, packs = "random", False


OFFER = Scattered
