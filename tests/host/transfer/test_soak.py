"""Ten seconds of the soak; `python -m tests.host.transfer.soak` goes on for minutes."""

import pytest
from tests.host.transfer.soak import Soak
from tests.nightly import at_night


@pytest.mark.host
@pytest.mark.timeout(180)
@pytest.mark.parametrize("seconds", [4.0, at_night(20.0)])
def test_seconds_of_everything_leave_no_byte_unaccounted_for(seconds):
    """Puts, gets, cancels, kills and reconnects, at random."""
    soak = Soak(seed=11)
    try:
        soak.run(seconds)
    finally:
        soak.close()

    assert soak.counts["killed"] >= 1
    assert soak.counts["prepared"] >= 1
    assert soak.counts["bytes accounted for"] == 4 * 48 * (24 << 10)
