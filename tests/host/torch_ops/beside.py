"""Our functions beside torch.distributed's, on a group of the backend "stretto"."""

import torch
import torch.distributed as dist
from tests.host.torch_ops.checks import check
from tests.host.torch_ops.fusions import gloo

import stretto.torch as st


@check
def beside_started_calls(b):
    """What dist has started goes first, in every rank's order; groups of all kinds."""
    gloo(b)
    group = dist.new_group(backend="stretto")
    total = sum(range(1, b.n + 1))
    for count in (3, 70_000):
        for _ in range(20):
            x = torch.full((count,), b.rank + 1.0)
            work = dist.all_reduce(x, group=group, async_op=True)
            y = st.all_reduce(torch.full((count,), 2.0 * (b.rank + 1)), group=group)
            z = st.communicator(group).all_reduce(torch.full((5,), 1.0))
            work.wait()
            b.true("dist's", bool((x == total).all()))
            b.true("ours", bool((y == 2 * total).all()))
            b.true("the communicator's", bool((z == b.n).all()))
    name = group.group_name
    b.same(
        "by name", st.all_reduce(torch.ones(3), group=name), torch.full((3,), 1.0 * b.n)
    )

    def step(x):
        return st.all_reduce(x, group=group) + st.all_gather(x, name).sum()

    torch._dynamo.reset()
    got = torch.compile(step, backend="aot_eager", fullgraph=True)(torch.ones(3))
    b.same("compiled", got, torch.full((3,), 4.0 * b.n))
    dist.destroy_process_group(group)
