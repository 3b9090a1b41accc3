"""Calls between hosts by other carriers than tcp: for meaning, over their TCP."""

import pytest
from tests.checking.libraries import lacks
from tests.nightly import at_night

pytestmark = [pytest.mark.host, pytest.mark.fresh, pytest.mark.timeout(200)]

CALLS = """
import os
comm = connect()
n, r = comm.num_ranks, comm.rank
for count in (1, 3000, 300_000):
    x = np.arange(count, dtype=np.float32) + r
    whole = np.arange(count, dtype=np.float32) * n + n * (n - 1) / 2
    for _ in range(3):
        assert np.array_equal(comm.all_reduce(x.copy()), whole)
    got = comm.all_gather(x).reshape(n, -1)
    assert all(np.array_equal(row, x - r + q) for q, row in enumerate(got))
for _ in range(3):
    comm.barrier()
say(comm.hosts, comm.explain("all_reduce", 100).partition("#")[2].strip())
comm.close()
"""


@pytest.mark.parametrize("carrier", [at_night("nixl"), "ucx"])
def test_calls_are_right_over_other_carriers(start, hosts, carrier):
    """Two ranks on each host; UCX is held to TCP, as there is nothing else here.

    Ranks are fresh: UCX looks for its devices in a /sys of the host's own.
    """
    if why := lacks(carrier):
        pytest.skip(why)
    own = {f"rank{r}": {"UCX_NET_DEVICES": hosts.interface(r // 2)} for r in range(4)}
    job = start(
        (0, 0, 1, 1), CALLS, STRETTO_CARRIER=carrier, UCX_TLS="tcp,self", **own
    )  # fmt: skip
    out, err = job.end(150)

    said = f"(0, 0, 1, 1) between hosts by {carrier}"
    assert [said] * 4 == [o.strip() for o in out], err
