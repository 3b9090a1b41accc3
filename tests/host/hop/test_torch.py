"""A process group of ranks on two hosts: its calls are ours, not the fallback's."""

import pytest

pytest.importorskip("torch")
pytestmark = [pytest.mark.host, pytest.mark.timeout(240)]

GROUP = """
import logging
from datetime import timedelta
import torch
import torch.distributed as dist
import stretto.torch
said = []
class Keep(logging.Handler):
    def emit(self, record):
        said.append(record.getMessage())
logging.getLogger("stretto.torch").addHandler(Keep())
host = address.rpartition(":")[0]
dist.init_process_group(
    "stretto", init_method=host + ":29611", rank=rank, world_size=num_ranks,
    timeout=timedelta(seconds=60),
)
comm = stretto.torch.communicator()
n, r = num_ranks, rank
x = torch.full((1000,), float(r + 1))
dist.all_reduce(x)
assert (x == n * (n + 1) / 2).all()
out = torch.zeros(3 * n)
dist.all_gather_into_tensor(out, torch.full((3,), float(r)))
assert out.tolist() == [float(q) for q in range(n) for _ in range(3)]
part = torch.zeros(2)
dist.reduce_scatter_tensor(part, torch.ones(2 * n) * (r + 1))
assert (part == n * (n + 1) / 2).all()
got = torch.zeros(n)
dist.all_to_all_single(got, torch.arange(n, dtype=torch.float32) + 10 * r)
assert got.tolist() == [float(10 * q + r) for q in range(n)]
b = torch.full((4,), float(r))
dist.broadcast(b, src=n - 1)
assert (b == n - 1).all()
mine = [torch.zeros(2) for _ in range(n)] if r == 0 else None
dist.gather(torch.full((2,), float(r)), mine, dst=0)
if r == 0:
    assert [t[0].item() for t in mine] == list(range(n))
s = torch.zeros(2)
parts = [torch.full((2,), float(q)) for q in range(n)] if r == 0 else None
dist.scatter(s, parts, src=0)
assert (s == r).all()
objects = [None] * n
dist.all_gather_object(objects, {"rank": r})
assert objects == [{"rank": q} for q in range(n)]
dist.barrier()
work = dist.all_reduce(torch.ones(5), async_op=True)
work.wait()
sub = dist.new_group([0, n - 1])
y = torch.ones(10)
if r in (0, n - 1):
    dist.all_reduce(y, group=sub)
    assert (y == 2).all()
say(comm.hosts, [text for text in said if "Gloo" in text])
dist.destroy_process_group()
"""


def test_a_process_group_over_two_hosts_is_ours(start, hosts):
    """Every collective, values, started calls and a group of some; none by Gloo."""
    own = {f"rank{r}": {"GLOO_SOCKET_IFNAME": hosts.interface(r)} for r in (0, 1)}
    job = start((0, 1), GROUP, STRETTO_SECRET_FILE="", **own)
    out, err = job.end(220)

    assert ["(0, 1) []"] * 2 == [line.strip() for line in out], err
