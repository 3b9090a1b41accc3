"""Ten seconds of the soak; `python -m tests.host.transfer.soak` goes on for minutes."""

import pytest
from tests.host.transfer.soak import Soak


@pytest.mark.host
@pytest.mark.timeout(180)
def test_ten_seconds_of_everything_leave_no_byte_unaccounted_for():
    """Puts, gets, cancels, kills and reconnects, at random."""
    soak = Soak(seed=11)
    try:
        soak.run(10.0)
    finally:
        soak.close()

    assert soak.counts["killed"] >= 1
    assert soak.counts["prepared"] >= 1
    assert soak.counts["bytes accounted for"] == 4 * 48 * (24 << 10)
