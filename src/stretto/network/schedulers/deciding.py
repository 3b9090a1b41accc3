"""From grants to ranks: a policy's own places, or the best of several by CASSINI."""

from __future__ import annotations

import random

from stretto.network.cassini.groups import fitted
from stretto.network.schedulers.places import crossings, place
from stretto.network.schedulers.scheduler import (
    AllocationPolicy,
    ClusterView,
    JobPlaces,
)

__all__ = ["CASSINI", "Cassini", "Placed"]

CASSINI = "cassini"
_CANDIDATES = 10


class Placed:
    """A policy, and places that it finds good."""

    def __init__(self, policy: AllocationPolicy) -> None:
        self.policy = policy
        self.name, self.lease_ms = policy.name, policy.lease_ms

    def decide(self, view: ClusterView, draw: random.Random) -> JobPlaces:
        """Return the policy's own choice."""
        grants = self.policy.grants(view, draw)
        return JobPlaces(places=place(view, grants, draw, packs=self.policy.packs))


class Cassini:
    """Of placements that are equal to the policy, the one whose jobs fit best.

    Their shifts go to agents, one for each group of jobs that share links.
    """

    def __init__(self, host: Placed) -> None:
        self._policy = host.policy
        self.name, self.lease_ms = f"{host.name}+{CASSINI}", host.lease_ms

    def decide(self, view: ClusterView, draw: random.Random) -> JobPlaces:
        """Return the best of the policy's own choice and others like it."""
        policy, machine = self._policy, view.machine
        grants = policy.grants(view, draw)
        first = place(view, grants, draw, packs=policy.packs)
        jobs = {standing.job.name: standing.job for standing in view.jobs}
        likes, others = [first], random.Random(f"cassini {view.now_ms}")
        for _ in range(_CANDIDATES - 1):
            other = place(view, grants, others, packs=policy.packs, loosely=True)
            same = other.keys() == first.keys() and other not in likes
            if same and crossings(machine, other) <= crossings(machine, first):
                likes.append(other)
        placed = [{jobs[name]: ranks for name, ranks in p.items()} for p in likes]
        scores = [fitted(machine, p, quick=True).score for p in placed]
        chosen = max(range(len(likes)), key=lambda i: (scores[i], -i))
        plan = fitted(machine, placed[chosen])
        return JobPlaces(
            places=likes[chosen],
            groups=plan.groups,
            score=plan.score if plan.groups else None,
        )
