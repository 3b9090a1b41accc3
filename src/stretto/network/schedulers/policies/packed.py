"""First come, first served, on as few boxes as can be; who does not fit waits."""

from __future__ import annotations

import random

from stretto.network.schedulers.scheduler import ClusterView

__all__ = ["OFFER"]


class Packed:
    """Jobs in the order of their coming, each with all its workers."""

    name, lease_ms, packs = "packed", 0.0, True

    def grants(self, view: ClusterView, draw: random.Random) -> dict[str, int]:
        """Give workers while there are any; those behind go ahead if they fit."""
        free, found = view.machine.num_ranks, dict[str, int]()
        for standing in sorted(view.jobs, key=lambda s: not s.ranks):
            if standing.job.workers <= free:
                found[standing.job.name] = standing.job.workers
                free -= standing.job.workers
        return found


OFFER = Packed
