"""Ranks, standbys and whoever orders them about, as real processes."""

import json

from tests.host.meeting.conftest import environment, nothing_left, start

__all__ = ["environment", "nothing_left", "start", "trained"]


def trained(members):
    """Return losses by rank, and what weights add up to, of who was not killed.

    Each says its rank, its losses by step, and the sum of its weights.
    """
    found, sums = {}, set()
    for one in members:
        out, said = one.process.communicate(timeout=250)
        if one.process.returncode == -9:
            continue
        assert 0 == one.process.returncode, said
        rank, losses, whole = json.loads(out.splitlines()[-1])
        found[rank] = losses
        sums.add(whole)
    return found, sums
