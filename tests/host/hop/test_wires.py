"""Hosts that a wire joins which delays packets, is slow, or loses some."""

import time

import pytest
from tests.checking.wire import Wire
from tests.nightly import at_night

pytestmark = [pytest.mark.host, pytest.mark.timeout(120)]

CALLS = """
comm = connect(30.0)
n, r = comm.num_ranks, comm.rank
for count in (1, 3000, 60_000):
    x = np.arange(count, dtype=np.float32) + r
    whole = np.arange(count, dtype=np.float32) * n + n * (n - 1) / 2
    for _ in range(3):
        assert np.array_equal(comm.all_reduce(x.copy()), whole)
    got = comm.all_to_all(np.repeat(np.arange(n, dtype=np.float32), count) + 10 * r)
    assert (got.reshape(n, -1) == 10 * np.arange(n)[:, None] + r).all()
begun = time.perf_counter()
for _ in range(5):
    comm.all_reduce(np.ones(2, np.float32))
say((time.perf_counter() - begun) / 5)
comm.close()
"""


@pytest.mark.parametrize(
    "wire",
    [
        at_night(Wire(delay_s=0.005, bits_per_s=2e8)),
        Wire(delay_s=0.0005, loss=0.01),
    ],
)
def test_results_are_right_over_a_bad_wire(start, slow_hosts, wire):
    """Late, slow and lost packets make calls longer, and nothing else."""
    job = start((0, 0, 1, 1), CALLS, on=slow_hosts(wire))
    out, err = job.end(110)

    assert all(text.strip() for text in out), err
    assert all(float(text) >= wire.delay_s for text in out), err


IDLE = """
comm = connect()
x = np.ones(10, np.float32)
say(comm.all_reduce(x.copy())[0])
sys.stdin.readline()
say(comm.all_reduce(x.copy())[0])
comm.close()
"""


def test_a_wire_that_is_away_for_a_second_loses_nobody(start, hosts):
    """An idle host is asked each second, and one lost question is no verdict."""
    job = start((0, 1), IDLE)
    assert ["2.0", "2.0"] == job.hear_all()
    for _ in range(2):
        hosts.cut()
        time.sleep(0.7)
        hosts.mend()
        time.sleep(1.2)
    for rank in job.ranks:
        rank.stdin.write("go on\n")
        rank.stdin.flush()

    assert ["2.0", "2.0"] == job.hear_all()
