"""A switch of weights is measured, and is right."""

import pytest

from stretto.bench import weights

pytestmark = [pytest.mark.host, pytest.mark.timeout(120)]


def test_a_switch_is_measured_with_two_copies_and_with_one():
    """Nothing is torn; each row says what a push, a switch and a pause take."""
    rows = list(weights.measure(1 << 16))

    assert [2, 1] == [row["copies"] for row in rows]
    for row in rows:
        assert row["steps"] > 0 == row["torn"]
        assert 0 < row["push_ms"] <= row["switched_ms"] <= row["median_ms"]
