"""What a group does beside collectives: transfers, started calls, options, memory."""

from __future__ import annotations

from datetime import timedelta

import torch
import torch.distributed as dist
from tests.host.torch.comparing import of, raises, same
from torch.distributed import ReduceOp

import stretto
import stretto.torch


def check_send_and_receive_with_tags_and_any_source(rank, n):
    right, left = (rank + 1) % n, (rank - 1) % n
    got = torch.zeros(3)
    ops = [
        dist.P2POp(dist.isend, torch.full((3,), float(rank)), right),
        dist.P2POp(dist.irecv, got, left),
    ]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    same(torch.full((3,), float(left)), got)
    if rank == 0:
        texts = torch.tensor([1.0]), torch.tensor([2.0])
        works = [dist.isend(t, 1, tag=7 + k) for k, t in enumerate(texts)]
        for work in works:
            work.wait()
        dist.send(torch.arange(8.0)[::2] / 2, 1)
    if rank == 1:
        first, second = torch.zeros(1), torch.zeros(1)
        dist.recv(second, 0, tag=8)
        dist.recv(first, 0, tag=7)
        assert [1.0, 2.0] == [first.item(), second.item()]
        strided = torch.zeros(4, 2)[:, 0]
        assert 0 == dist.recv(strided)
        same(torch.arange(4.0), strided)


def check_a_started_call_goes_on_while_nobody_waits(rank, n):
    """Rank 0 starts a sum and then sends; rank 1 receives before it joins the sum."""
    x = torch.ones(4)
    if rank == 0:
        work = dist.all_reduce(x, async_op=True)
        dist.send(torch.tensor([5.0]), 1)
    elif rank == 1:
        got = torch.zeros(1)
        dist.recv(got, 0)
        work = dist.all_reduce(x, async_op=True)
    else:
        work = dist.all_reduce(x, async_op=True)
    future = work.get_future()
    assert future.wait()[0] is x or torch.equal(future.wait()[0], x)
    same(torch.full((4,), float(n)), x)


def check_futures_complete_in_order_and_chain(rank, n):
    xs = [torch.full((2,), float(k)) for k in range(5)]
    works = [dist.all_reduce(x, async_op=True) for x in xs]
    then = works[2].get_future().then(lambda f: f.value()[0] + 1)

    def more(future):
        y = future.value()[0].clone()
        return dist.all_reduce(y, async_op=True).get_future().wait()[0]

    chained = works[4].get_future().then(more)
    same(torch.full((2,), 2.0 * n + 1), then.wait())
    works[1].wait()
    same(torch.full((2,), 4.0 * n * n), chained.wait())
    for k, x in enumerate(xs):
        same(torch.full((2,), float(k) * n), x)
    assert works[0].is_completed()
    assert works[0].is_success()
    assert works[0].exception() is None


def check_a_barrier_waits_for_started_calls(rank, n):
    x = torch.ones(1000)
    work = dist.all_reduce(x, async_op=True)
    dist.barrier()
    assert work.is_completed()
    same(torch.full((1000,), float(n)), x)
    assert dist.barrier(async_op=True).wait()


def check_functional_collectives(rank, n):
    import torch.distributed._functional_collectives as funcol

    group = dist.group.WORLD
    x = of(rank, n, (4,), torch.float32)
    want = sum(of(r, n, (4,), torch.float32) for r in range(n))
    same(want, funcol.all_reduce(x, "sum", group).wait())
    gathered = funcol.all_gather_tensor(x, 0, group).wait()
    same(torch.cat([of(r, n, (4,), torch.float32) for r in range(n)]), gathered)
    part = funcol.reduce_scatter_tensor(torch.cat([x] * n), "sum", 0, group).wait()
    same(want, part)
    moved = funcol.all_to_all_single(
        torch.arange(n).float() + rank * n, None, None, group
    ).wait()
    same(torch.arange(n).float() * n + rank, moved)
    for one in funcol.all_reduce_coalesced([x, x + 1], "avg", group):
        one.wait()


def check_subgroups_and_meshes(rank, n):
    from torch.distributed.device_mesh import init_device_mesh

    pairs = [list(range(i, min(i + 2, n))) for i in range(0, n, 2)]
    mine, _ = dist.new_subgroups_by_enumeration(pairs)
    members = next(p for p in pairs if rank in p)
    x = torch.tensor([float(rank)])
    dist.all_reduce(x, group=mine)
    assert sum(members) == x.item()
    assert "stretto" == dist.get_backend(mine)
    assert stretto.torch.communicator(mine).num_ranks == len(members)
    assert stretto.torch.communicator(mine.group_name).num_ranks == len(members)
    other = dist.new_group(backend="gloo")
    dist.all_reduce(x, group=other)
    with raises(stretto.CallError, match="backend gloo"):
        stretto.torch.communicator(other)
    mesh = init_device_mesh("cpu", (n,), mesh_dim_names=("x",))
    y = torch.ones(1)
    dist.all_reduce(y, group=mesh.get_group("x"))
    assert n == y.item()
    dist.destroy_process_group(mine)
    with raises(stretto.CallError, match="was destroyed"):
        mine.allreduce([x])
    same(torch.full((1,), float(n)), _sum(torch.ones(1)))


def _sum(x):
    dist.all_reduce(x)
    return x


def check_two_threads_may_use_one_group(rank, n):
    """Calls of two threads come one after another; here both call the same."""
    import threading

    xs = [torch.ones(64) for _ in range(2)]

    def work(x):
        for _ in range(50):
            dist.all_reduce(x, ReduceOp.MAX)

    threads = [threading.Thread(target=work, args=(x,)) for x in xs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for x in xs:
        same(torch.ones(64), x)


def check_the_group_knows_its_names(rank, n):
    world = dist.group.WORLD
    assert "stretto" == dist.get_backend()
    assert (rank, n) == (world.rank(), world.size())
    assert [torch.device("cpu")] == world._device_types or torch.cuda.is_available()
    assert world.get_group_store() is not None
    assert stretto.torch.communicator() is stretto.torch.communicator(world)
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=33), world)
    assert 33 == stretto.torch.communicator().deadline_s
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=60), world)


def check_short_forms_of_the_group_itself(rank, n):
    world = dist.group.WORLD
    x = torch.ones(3)
    world.allreduce(x).wait()
    world.allreduce([x], op=ReduceOp.MAX).wait()
    same(torch.full((3,), float(n)), x)
    world.broadcast(x, 0).wait()
    outs = [torch.zeros(3) for _ in range(n)]
    world.allgather([outs], [x]).wait()
    same(x, outs[-1])
    world.barrier().wait()


def check_a_profiler_sees_the_calls(rank, n):
    with torch.profiler.profile() as prof:
        dist.all_reduce(torch.ones(2))
        dist.all_reduce(torch.ones(2), async_op=True).wait()
    assert 2 == sum(e.name == "stretto:all_reduce" for e in prof.events())


def check_sparse_tensors_go_to_the_fallback(rank, n):
    dense = torch.zeros(6)
    dense[rank] = 1.0
    x = dense.to_sparse()
    dist.all_reduce(x)
    want = torch.zeros(6)
    want[:n] = 1.0
    same(want, x.to_dense())


def check_any_order_of_groups_in_two_threads(rank, n):
    """Started calls of two groups, in opposite order on odd ranks, all end."""
    one, two = dist.new_group(), dist.new_group()
    x, y = torch.ones(3), torch.ones(3)
    order = [(x, one), (y, two)]
    if rank % 2:
        order.reverse()
    works = [dist.all_reduce(t, group=g, async_op=True) for t, g in order]
    for work in works:
        work.wait()
    same(torch.full((3,), float(n)), x)
    same(torch.full((3,), float(n)), y)
    for group in (one, two):
        dist.destroy_process_group(group)


def check_memory_of_the_group_is_zero_copy(rank, n):
    for dtype in (torch.float32, torch.bfloat16, torch.bool):
        x = stretto.torch.empty(3, 4, dtype=dtype)
        assert ((3, 4), dtype) == (tuple(x.shape), x.dtype)
        x.copy_(of(0, n, (3, 4), dtype))
        dist.all_reduce(x, ReduceOp.MAX)
        same(of(0, n, (3, 4), dtype), x)
    x = stretto.torch.empty((5,)).fill_(1.0)
    dist.all_reduce(x)
    same(torch.full((5,), float(n)), x)
    comm = stretto.torch.communicator()
    session = comm._sessions["cpu"]
    assert session.offset(x.numpy()) is not None  # peers touch it directly
    assert not stretto.torch.register(torch.ones(4, device="cpu"))
    assert 0 == stretto.torch.empty(0).numel()
    with raises(stretto.CallError, match="GPUs"):
        stretto.torch.pool(1 << 20)


def check_transfers_may_be_ours(rank, n):
    """By an option, sends without a tag go by stretto's channels, in order."""
    options = stretto.torch.Options(transfers="stretto")
    group = dist.new_group(pg_options=options)
    right, left = (rank + 1) % n, (rank - 1) % n
    for count in (1, 3000):
        got = [torch.zeros(count, 2)[:, 0] for _ in range(2)]
        ops = [
            dist.P2POp(dist.isend, torch.full((count,), rank + k / 2), right, group)
            for k in range(2)
        ]
        ops += [dist.P2POp(dist.irecv, one, left, group) for one in got]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        for k, one in enumerate(got):
            same(torch.full((count,), left + k / 2), one.contiguous())
    with raises(stretto.CallError, "source that is named"):
        dist.recv(torch.zeros(1), group=group)
    tagged = torch.zeros(1)
    works = [
        dist.isend(torch.ones(1), right, group, tag=3),
        dist.irecv(tagged, left, group, tag=3),
    ]
    for work in works:
        work.wait()
    same(torch.ones(1), tagged)
    dist.destroy_process_group(group)


def check_algorithms_may_be_named(rank, n):
    options = stretto.torch.Options(algorithms={"all_reduce": "ring"})
    group = dist.new_group(pg_options=options)
    x = torch.ones(100)
    dist.all_reduce(x, group=group)
    same(torch.full((100,), float(n)), x)
    kinds = stretto.torch.communicator(group)._launches
    assert ["all_reduce/ring"] == [
        kind.pin for kind in kinds if kind.asked.collective == "all_reduce"
    ]
    dist.destroy_process_group(group)


def check_bits_may_be_invariant(rank, n):
    """A row's bits are those of the row alone; what others would add is refused."""
    group = dist.new_group(pg_options=stretto.torch.Options(bits="invariant"))
    made, here = torch.Generator(device="cpu"), torch.ones(1).device
    every = [
        torch.randn(500, 8, generator=made.manual_seed(r), device="cpu").to(here)
        for r in range(n)
    ]
    want = every[0]
    for one in every[1:]:
        want = want + one
    for rows in (1, 2, 31, 500):
        x = every[rank][-rows:].clone()
        dist.all_reduce(x, group=group)
        same(want[-rows:], x)
    assert "invariant" == stretto.torch.communicator(group).bits
    named = group.pinned({"all_reduce": "ring"})
    if n > 2:
        with raises(stretto.CallError, "ring adds otherwise"), named:
            dist.all_reduce(torch.ones(8), group=group)
    with raises(stretto.CallError, "in an order of theirs"):
        dist.all_reduce(torch.ones(8).to_sparse(), group=group)
    dist.destroy_process_group(group)


def check_calls_may_be_pinned_for_a_while(rank, n):
    """A pin is for the calls within; what it names is checked as any algorithm is."""
    group = dist.group.WORLD
    x = torch.ones(1000)
    with group.pinned({"all_reduce": "all_reduce/ring"}):
        dist.all_reduce(x)
    wrong = {"all_reduce": "all_reduce/nonsense"}
    with raises(stretto.StrettoError, "nonsense"), group.pinned(wrong):
        pass
    dist.all_reduce(x)
    same(torch.full((1000,), float(n * n)), x)


def check_a_monitored_barrier_names_who_is_late(rank, n):
    """Gloo's, within our group: rank 0 says who has not come."""
    dist.group.WORLD.monitored_barrier(timedelta(seconds=10))
    group = dist.new_group()
    if rank < n - 1:
        with raises(RuntimeError, f"Ranks {n - 1} failed" if rank == 0 else "rank 0"):
            group.monitored_barrier(timedelta(seconds=1), wait_all_ranks=True)
    dist.barrier()
    dist.destroy_process_group(group)


def check_its_memory_may_be_given_back_for_a_while(rank, n):
    group = dist.new_group(backend="stretto")
    x = torch.ones(100_000) * (rank + 1)
    kept = stretto.torch.empty(1000, device=x.device.type, group=group)
    kept.fill_(rank)
    dist.all_reduce(x.clone(), group=group)
    started = dist.all_reduce(x.clone(), group=group, async_op=True)
    stretto.torch.suspend(group)
    started.wait()
    held = stretto.torch.communicator(group).memory()
    assert not any(one.get("staging") for one in held.values()), held
    for call in (dist.all_reduce, dist.broadcast):
        root = {"src": 0} if call is dist.broadcast else {}
        with raises(RuntimeError, "is suspended"):
            call(x, group=group, **root)
    dist.barrier()  # other groups go on
    stretto.torch.resume(group)
    dist.all_reduce(x, group=group)
    same(torch.ones(100_000) * (n * (n + 1) / 2), x)
    dist.all_reduce(kept, group=group)
    same(torch.full((1000,), n * (n - 1) / 2), kept)
    dist.destroy_process_group(group)
