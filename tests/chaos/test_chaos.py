"""A minute of chaos; hours with `python -m tests.chaos --cheap 100000 --dear 1000`."""

import secrets

import pytest
from tests.chaos.__main__ import run, used

pytestmark = [pytest.mark.host, pytest.mark.timeout(300)]


def test_a_minute_of_chaos():
    """Nothing hangs, no value is wrong, nobody is misled, nothing is left."""
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    _, failed = run(seed, cheap=150, dear=4, stop_s=100)

    assert [] == failed, f"seed {seed}"
    assert 0 == used()["processes"]
