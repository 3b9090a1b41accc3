"""The job with the least left to do first; others make way, between iterations."""

from __future__ import annotations

import random

from stretto.network.schedulers.scheduler import ClusterView

__all__ = ["OFFER"]


class ShortestFirst:
    """Shortest remaining processing time."""

    name, lease_ms, packs = "srpt", 0.0, True

    def grants(self, view: ClusterView, draw: random.Random) -> dict[str, int]:
        """Give all their workers to the jobs with the least left, if they fit."""
        free, found = view.machine.num_ranks, dict[str, int]()
        for standing in sorted(view.jobs, key=lambda s: (s.left_ms, s.job.name)):
            if standing.job.workers <= free:
                found[standing.job.name] = standing.job.workers
                free -= standing.job.workers
        return found


OFFER = ShortestFirst
