"""The front door and the socket behind it: whatever knocks, the job meets."""

import random

import pytest
from tests.chaos.scenarios import flood
from tests.held import held, left_since

pytestmark = [pytest.mark.host, pytest.mark.timeout(60)]


def test_a_flood_of_hostile_frames_costs_nothing(tmp_path):
    """At the socket and at the door, and nothing is left of it."""
    before = held()
    assert 400 == flood(random.Random(1), tmp_path, strangers=400)
    assert [] == left_since(before)
