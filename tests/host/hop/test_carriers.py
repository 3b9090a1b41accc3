"""Calls between hosts by other carriers than tcp: for meaning, over their TCP."""

import os
import sys

import pytest

if os.environ.get("STRETTO_TEST_UCX"):
    sys.path.append(os.environ["STRETTO_TEST_UCX"])
if os.environ.get("STRETTO_TEST_NIXL"):
    sys.path.append(os.environ["STRETTO_TEST_NIXL"])
from stretto.hop import nixl, ucx

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


@pytest.mark.parametrize("carrier", [nixl, ucx], ids=["nixl", "ucx"])
def test_calls_are_right_over_other_carriers(start, hosts, carrier):
    """Two ranks on each host; UCX is held to TCP, as there is nothing else here.

    Ranks are fresh: UCX looks for its devices in a /sys of the host's own.
    """
    name = carrier.__name__.rpartition(".")[2]
    if why := carrier.library.missing():
        pytest.skip(why)
    variables = ("STRETTO_TEST_UCX", "STRETTO_TEST_NIXL")
    folders = [os.environ[v] for v in variables if os.environ.get(v)]
    path = [p for p in os.environ.get("PYTHONPATH", "").split(":") if p]
    own = {f"rank{r}": {"UCX_NET_DEVICES": hosts.interface(r // 2)} for r in range(4)}
    job = start(
        (0, 0, 1, 1), CALLS, STRETTO_CARRIER=name, UCX_TLS="tcp,self",
        PYTHONPATH=os.pathsep.join([*path, *folders]), **own,
    )  # fmt: skip
    out, err = job.end(150)

    said = f"(0, 0, 1, 1) between hosts by {name}"
    assert [said] * 4 == [o.strip() for o in out], err
