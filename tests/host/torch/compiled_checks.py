"""Compiled models and calls give on stretto what they give uncompiled, or on Gloo."""

from __future__ import annotations

import torch
import torch.distributed as dist
from tests.host.torch.training_checks import (
    alike,
    batch,
    ddp,
    gloo,
    mesh_of,
    network,
    sharded,
    steps,
)
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import stretto.torch as st

BACKENDS = ("aot_eager", "inductor")


def backends(n):
    """Return what compiles: Inductor, too, where there is time, on many ranks."""
    return BACKENDS[: 1 if n == 2 else 2]


def compiled(what, **options):
    torch._dynamo.reset()
    return torch.compile(what, **{"backend": "aot_eager"} | options)


def check_functional_collectives_in_a_full_graph(rank, n):
    import torch.distributed._functional_collectives as funcol

    group = dist.group.WORLD

    def layer(x, w):
        y = funcol.all_reduce(x @ w, "sum", group)
        z = funcol.all_gather_tensor(torch.relu(y), 0, group)
        return funcol.reduce_scatter_tensor(z * 2, "avg", 0, group) + 1

    def plain_calls(x):
        y = x * (rank + 1)
        dist.all_reduce(y)
        return y + 1

    torch.manual_seed(9)
    x, w = torch.randn(4, 4), torch.randn(4, 4)
    for call, args in ((layer, (x, w)), (plain_calls, (x,))):
        compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(*args), call(*args))


def check_ddp_is_compiled(rank, n):
    """Its buffers are broadcast in every step, below frames that Dynamo looks at."""

    def losses(group, backend):
        model = DistributedDataParallel(network(), process_group=group)
        return steps(compiled(model, backend=backend), rank)

    for backend in backends(n):
        alike(losses(None, backend), losses(gloo(), backend))
    inner = DistributedDataParallel(compiled(network()), process_group=None)
    alike(steps(inner, rank), ddp(gloo(), rank))


def check_a_step_around_ddp_is_compiled(rank, n):
    def losses(group):
        model = DistributedDataParallel(network(), process_group=group)
        loss_of = compiled(lambda x, y: nn.functional.mse_loss(model(x), y))
        found = []
        for step in range(3):
            loss = loss_of(*batch(rank, step))
            loss.backward()
            found.append(loss.item())
        return found

    alike(losses(None), losses(gloo()))


def check_fsdp2_is_compiled(rank, n):
    want = steps(sharded(mesh_of(gloo(), n, "dp")), rank)
    for backend in backends(n):
        model = compiled(sharded(mesh_of(None, n, "dp")), backend=backend)
        alike(steps(model, rank), want)


def check_calls_of_all_kinds_in_compiled_code(rank, n):
    """Calls that no graph can hold are made as they are; nothing of ours is traced."""
    comm, later = st.communicator(), torch._dynamo.graph_break

    def by_group(x):
        y = x * 2
        dist.broadcast(y, 0)
        return y + 1

    def started(x):
        y = x * 2
        later()
        work = dist.all_reduce(y, async_op=True)
        z = x + 1
        work.wait()
        return y + z

    def in_future(x):
        y = x * 2
        later()
        return dist.all_reduce(y, async_op=True).get_future().wait()[0] + 1

    def between_two(x):
        y, out = x * 2, torch.empty_like(x)
        later()
        there, back = (rank + 1) % n, (rank - 1) % n
        for work in dist.batch_isend_irecv(
            [dist.P2POp(dist.isend, y, there), dist.P2POp(dist.irecv, out, back)]
        ):
            work.wait()
        return out + 1

    def by_communicator(x):
        y = x * 2
        comm.all_reduce(y)
        st.communicator().all_reduce(y)
        return y + 1

    def in_own_memory(x):
        y = st.empty(8)
        y.copy_(x)
        dist.all_reduce(y)
        return y + 1

    def operators(x):
        later()
        st.barrier()
        return st.all_reduce(torch.ops.stretto.all_reduce(x, "sum", "")) + 1

    kinds = by_group, started, in_future, between_two, by_communicator, in_own_memory
    for call in (*kinds, operators):
        x = torch.arange(8.0) + rank
        made = compiled(call)
        for _ in range(3):  # the last of them are known
            torch.testing.assert_close(made(x.clone()), call(x.clone()))


def check_what_is_one_graph_on_gloo_is_one_on_stretto(rank, n):
    def gathered(x, group):
        out = x.new_empty(n * 4 * n)
        dist.all_gather_into_tensor(out, x, group=group)
        parts = [torch.empty_like(x) for _ in range(n)]
        dist.all_gather(parts, x, group=group)
        return out.sum() + sum(parts)

    def reduced(x, group):
        out, y = x.new_empty(4), x * 2
        dist.all_reduce(y, group=group)
        dist.reduce_scatter_tensor(out, y, group=group)
        return out + dist.get_rank(group) + dist.get_world_size(group)

    def swapped(x, group):
        out, again = torch.empty_like(x), torch.empty_like(x)
        dist.all_to_all_single(out, x, group=group)
        dist.all_to_all_single(again, out, [4] * n, [4] * n, group=group)
        return again + 1

    x = torch.arange(4.0 * n) + rank
    for call in (gathered, reduced, swapped):
        want = compiled(lambda x, call=call: call(x, gloo()), fullgraph=True)(x)
        for backend in backends(n):
            ours = lambda x, call=call: call(x, dist.group.WORLD)  # noqa: E731
            made = compiled(ours, fullgraph=True, backend=backend)
            torch.testing.assert_close(made(x), want)


def check_inductor_is_told_what_calls_take(rank, n):
    """By a group of ours, as the simulator says; nothing is moved meanwhile."""
    import torch.distributed._functional_collectives as funcol
    from torch._inductor.comm_analysis import (
        estimate_nccl_collective_runtime_from_fx_node as estimated,
    )
    from torch.fx.experimental.proxy_tensor import make_fx

    group, comm = dist.group.WORLD, st.communicator()
    count = 1 << 18

    def calls(x):
        summed = funcol.all_reduce(x, "sum", group)
        whole = funcol.all_gather_tensor(summed, 0, group)
        return funcol.reduce_scatter_tensor(whole, "sum", 0, group)

    graph = make_fx(calls, tracing_mode="fake")(torch.zeros(count))
    told = {}
    for node in graph.graph.nodes:
        name = str(node.target)
        if "_c10d_functional" in name and "wait" not in name:
            told[name.split(".")[1]] = 1e3 * estimated(node)
    want = {
        "all_reduce": comm.estimate("all_reduce", count),
        "all_gather_into_tensor": comm.estimate("all_gather", count),
        "reduce_scatter_tensor": comm.estimate("reduce_scatter", count),
    }
    assert told.keys() == want.keys()
    for name, us in want.items():
        assert us > 1, name
        torch.testing.assert_close(told[name], us)


def check_what_is_estimated_is_not_done(rank, n):
    """Nor is what nobody can simulate guessed; calls afterwards are made again."""
    for device in ("cuda", "cpu"):  # an older PyTorch asks the first, of any call
        _estimated_and_not_done(dist.group.WORLD._get_backend(device), rank, n)


def _estimated_and_not_done(backend, rank, n):
    comm = st.communicator()
    assert backend.supports_time_estimate
    x, out = torch.full((1000,), float(rank)), torch.zeros(1000 * n)
    backend._start_time_estimate()
    for _ in range(3):
        dist.all_reduce(x)
    started = dist.all_gather_into_tensor(out, x, async_op=True)
    started.wait()
    us = backend._end_time_estimate()
    each = comm.estimate("all_reduce", 1000), comm.estimate("all_gather", 1000)
    torch.testing.assert_close(us, 3 * each[0] + each[1])
    assert (x == rank).all()
    assert not out.any()

    backend._start_time_estimate()
    dist.all_reduce(x)
    dist.reduce(x, 0)
    assert backend._end_time_estimate() < 0
    assert backend._end_time_estimate() < 0, "nobody has asked"
    dist.all_reduce(x)
    assert (x == n * (n - 1) / 2).all()
