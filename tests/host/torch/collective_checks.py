"""What every collective of torch.distributed gives, in all its forms, on any ranks."""

from __future__ import annotations

import re
import warnings
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

import stretto
import stretto.torch

INTS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
FLOATS = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
COMPLEX = (torch.complex64, torch.complex128)
MOVED = (*INTS, *FLOATS, *COMPLEX, torch.bool, torch.float8_e4m3fn, torch.float8_e5m2)


def of(rank, n, shape, dtype, *, salt=0):
    """Return a rank's tensor: small whole numbers, different everywhere."""
    count = 1
    for size in shape:
        count *= size
    values = (torch.arange(count) * 3 + rank * 5 + salt) % 7 + 1
    if dtype is torch.bool:
        return (values % 2 == 0).reshape(shape)
    if dtype.is_complex:
        return (
            torch.complex(values.double(), values.double() - 3).to(dtype).reshape(shape)
        )
    return values.to(torch.float32).to(dtype).reshape(shape)


@contextmanager
def raises(kind, match=""):
    """Want an error with these words; the checks run without pytest, too."""
    said = None
    try:
        yield
    except kind as e:
        said = str(e)
    assert said is not None, f"nothing was raised; want {kind}"
    assert re.search(match, said), said


def same(want, got):
    """Raise unless two tensors have the same type, shape and elements."""
    assert want.dtype == got.dtype
    assert want.shape == got.shape
    if want.dtype.itemsize == 1 and want.dtype.is_floating_point:
        want, got = want.view(torch.uint8), got.view(torch.uint8)
    assert torch.equal(want, got), f"want {want}, got {got}"


def both(call, *args, **options):
    """Call in both ways: at once, and started and waited for."""
    call(*args, **options)
    yield
    work = call(*args, async_op=True, **options)
    assert work.wait() in (True, None)
    if hasattr(work, "is_completed"):
        assert work.is_completed()
    yield


def check_all_reduce_of_every_type(rank, n):
    for dtype in (*INTS, *FLOATS, *COMPLEX):
        for shape in ((5,), (), (0,), (3, 7)):
            parts = [of(r, n, shape, dtype) for r in range(n)]
            want = (
                torch.stack(parts)
                .to(torch.complex128 if dtype.is_complex else torch.float64)
                .sum(0)
                .to(dtype)
            )
            for started in (False, True):
                x = parts[rank].clone()
                work = dist.all_reduce(x, async_op=started)
                if started:
                    work.wait()
                same(want, x)


def check_all_reduce_by_every_operator(rank, n):
    parts = [of(r, n, (9,), torch.int32) for r in range(n)]
    stack = torch.stack(parts)
    bits = [parts[0].clone() for _ in range(3)]
    for part in parts[1:]:
        bits = [bits[0] & part, bits[1] | part, bits[2] ^ part]
    wants = {
        ReduceOp.SUM: stack.sum(0),
        ReduceOp.PRODUCT: stack.prod(0),
        ReduceOp.MIN: stack.min(0).values,
        ReduceOp.MAX: stack.max(0).values,
        ReduceOp.BAND: bits[0],
        ReduceOp.BOR: bits[1],
        ReduceOp.BXOR: bits[2],
    }
    for op, want in wants.items():
        x = parts[rank].clone()
        dist.all_reduce(x, op)
        same(want.to(torch.int32), x)
    x = of(rank, n, (9,), torch.float32)
    want = torch.stack([of(r, n, (9,), torch.float32) for r in range(n)]).sum(0) / n
    dist.all_reduce(x, ReduceOp.AVG)
    same(want, x)
    flags = of(rank, n, (9,), torch.bool)
    every = torch.stack([of(r, n, (9,), torch.bool) for r in range(n)])
    dist.all_reduce(flags, ReduceOp.MAX)
    same(every.any(0), flags)
    with raises(stretto.CallError, match="makes no sense"):
        dist.all_reduce(of(rank, n, (9,), torch.int32), ReduceOp.AVG)


def check_a_factor_multiplies_before_the_sum(rank, n):
    for factor in (2.0, torch.tensor([0.5])):
        op = dist._make_nccl_premul_sum(factor)
        want = sum(of(r, n, (6,), torch.float32) * factor for r in range(n))
        x = of(rank, n, (6,), torch.float32)
        dist.all_reduce(x, op)
        same(want, x)
        source = torch.cat([of(rank, n, (6,), torch.float32)] * n)
        out = torch.empty(6)
        dist.reduce_scatter_tensor(out, source, op)
        same(want, out)
        same(torch.cat([of(rank, n, (6,), torch.float32)] * n), source)


def check_strided_tensors_are_copied_in_and_out(rank, n):
    base = of(rank, n, (4, 6), torch.float32)
    kept = base.clone()
    view = base[:, 1:4]
    dist.all_reduce(view)
    want = sum(of(r, n, (4, 6), torch.float32) for r in range(n))
    same(want[:, 1:4], base[:, 1:4])
    same(kept[:, 0], base[:, 0])
    same(kept[:, 4:], base[:, 4:])
    turned = of(rank, n, (3, 5), torch.float64).t()
    dist.broadcast(turned, n - 1)
    same(of(n - 1, n, (3, 5), torch.float64).t(), turned)
    out = torch.zeros(n, 8)[:, ::2]
    dist.all_gather_into_tensor(out, of(rank, n, (4,), torch.float32))
    same(torch.stack([of(r, n, (4,), torch.float32) for r in range(n)]), out)
    lazy = of(rank, n, (4,), torch.complex64).conj()
    outs = [torch.empty(4, dtype=torch.complex64) for _ in range(n)]
    dist.gather(lazy, outs if rank == 0 else None, 0)
    for r in range(n if rank == 0 else 0):
        same(of(r, n, (4,), torch.complex64).conj().resolve_conj(), outs[r])


def check_broadcast_of_every_type_from_every_root(rank, n):
    for dtype in MOVED:
        for root in range(n):
            x = of(rank, n, (11,), dtype)
            for _ in both(dist.broadcast, x, root):
                same(of(root, n, (11,), dtype), x)
    leaf = torch.nn.Parameter(of(rank, n, (3,), torch.float32))
    dist.broadcast(leaf, 0)
    same(of(0, n, (3,), torch.float32), leaf.detach())


def check_reduce_gives_the_root_alone(rank, n):
    for dtype in (torch.float32, torch.int16, torch.complex64):
        for root in range(n):
            x = of(rank, n, (10,), dtype)
            dist.reduce(x, root)
            if rank == root:
                want = sum(of(r, n, (10,), dtype) for r in range(n)).to(dtype)
                same(want, x)


def check_all_gather_in_lists(rank, n):
    for dtype in MOVED:
        outs = [torch.zeros(2, 3).to(dtype) for _ in range(n)]
        for _ in both(dist.all_gather, outs, of(rank, n, (2, 3), dtype)):
            for r in range(n):
                same(of(r, n, (2, 3), dtype), outs[r])
    block = torch.zeros(n, 4)
    dist.all_gather(list(block), of(rank, n, (4,), torch.float32))
    same(torch.stack([of(r, n, (4,), torch.float32) for r in range(n)]), block)
    outs = [torch.zeros(()) for _ in range(n)]
    dist.all_gather(outs, torch.tensor(float(rank)))
    same(torch.arange(n).float(), torch.stack(outs))


def check_all_gather_of_unequal_parts(rank, n):
    outs = [torch.zeros(r * 3) for r in range(n)]  # the first is empty
    dist.all_gather(outs, of(rank, n, (rank * 3,), torch.float32))
    for r in range(n):
        same(of(r, n, (r * 3,), torch.float32), outs[r])


def check_all_gather_in_one_tensor(rank, n):
    parts = [of(r, n, (3, 4), torch.bfloat16) for r in range(n)]
    for shape in ((n * 3, 4), (n, 3, 4), (n * 12,)):
        out = torch.zeros(shape, dtype=torch.bfloat16)
        for _ in both(dist.all_gather_into_tensor, out, parts[rank]):
            same(torch.cat(parts).reshape(shape), out)
    with raises((stretto.StrettoError, ValueError, RuntimeError)):
        dist.all_gather_into_tensor(torch.zeros(n * 3 + 1), torch.zeros(3))


def check_reduce_scatter_in_lists_and_tensors(rank, n):
    want = sum(of(r, n, (5,), torch.float32, salt=rank) for r in range(n))
    ins = [of(rank, n, (5,), torch.float32, salt=to) for to in range(n)]
    out = torch.zeros(5)
    for _ in both(dist.reduce_scatter, out, ins):
        same(want, out)
    for shape in ((n * 5,), (n, 5)):
        for _ in both(dist.reduce_scatter_tensor, out, torch.cat(ins).reshape(shape)):
            same(want, out)
    uneven = [of(rank, n, (to + 1,), torch.int64, salt=to) for to in range(n)]
    mine = torch.zeros(rank + 1, dtype=torch.int64)
    dist.reduce_scatter(mine, uneven)
    same(sum(of(r, n, (rank + 1,), torch.int64, salt=rank) for r in range(n)), mine)
    half = torch.zeros(5, dtype=torch.bfloat16)
    dist.reduce_scatter_tensor(half, torch.cat(ins).bfloat16(), ReduceOp.AVG)
    same((want / n).bfloat16(), half)


def check_gather_and_scatter_with_every_root(rank, n):
    for dtype in (torch.float32, torch.bool, torch.complex128, torch.uint8):
        for root in range(n):
            x = of(rank, n, (4,), dtype)
            outs = (
                [torch.zeros(4).to(dtype) for _ in range(n)] if rank == root else None
            )
            dist.gather(x, outs, root)
            if rank == root:
                for r in range(n):
                    same(of(r, n, (4,), dtype), outs[r])
            ins = [of(r, n, (4,), dtype, salt=2) for r in range(n)]
            out = torch.zeros(4).to(dtype)
            dist.scatter(out, ins if rank == root else None, root)
            same(of(rank, n, (4,), dtype, salt=2), out)


def check_all_to_all_even_uneven_and_in_lists(rank, n):
    x = of(rank, n, (n * 2, 3), torch.float32)
    out = torch.zeros(n * 2, 3)
    for _ in both(dist.all_to_all_single, out, x):
        for r in range(n):
            same(
                of(r, n, (n * 2, 3), torch.float32)[rank * 2 : rank * 2 + 2],
                out[r * 2 : r * 2 + 2],
            )
    gives = [(rank + to) % 3 for to in range(n)]
    takes = [(r + rank) % 3 for r in range(n)]
    x = torch.full((sum(gives), 2), float(rank))
    out = torch.zeros(sum(takes), 2)
    for _ in both(dist.all_to_all_single, out, x, takes, gives):
        want = torch.cat(
            [torch.full((take, 2), float(r)) for r, take in enumerate(takes)]
        )
        same(want, out)
    ins = [torch.full(((rank + to) % 3,), rank * 10 + to) for to in range(n)]
    outs = [torch.zeros((r + rank) % 3, dtype=torch.int64) for r in range(n)]
    dist.all_to_all(outs, ins)
    for r in range(n):
        same(torch.full(((r + rank) % 3,), r * 10 + rank), outs[r])


def check_splits_that_do_not_fit_are_refused_by_all(rank, n):
    gives, takes = [1] * n, [1] * n
    if rank == 0:
        takes[n - 1] = 2  # its size fits, and what comes does not
        takes[0] = 0
    with raises(stretto.CallError, match="gives rank"):
        dist.all_to_all_single(torch.zeros(n), torch.ones(n), takes, gives)
    x = torch.ones(1)
    dist.all_reduce(x)  # nothing is lost
    same(torch.full((1,), float(n)), x)


def check_coalesced_calls(rank, n):
    xs = [of(rank, n, (k,), torch.float32) for k in (3, 1, 0, 8)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dist.all_reduce_coalesced(xs)
    for k, x in zip((3, 1, 0, 8), xs, strict=True):
        same(sum(of(r, n, (k,), torch.float32) for r in range(n)), x)
    ys = [of(rank, n, (k,), torch.float32) for k in (2, 5)]
    with dist._coalescing_manager(async_ops=True) as cm:
        for y in ys:
            dist.all_reduce(y)
    cm.wait()
    for k, y in zip((2, 5), ys, strict=True):
        same(sum(of(r, n, (k,), torch.float32) for r in range(n)), y)
    outs = [torch.zeros(n * k) for k in (2, 5)]
    with dist._coalescing_manager():
        for k, out in zip((2, 5), outs, strict=True):
            dist.all_gather_into_tensor(out, of(rank, n, (k,), torch.float32))
    for k, out in zip((2, 5), outs, strict=True):
        same(torch.cat([of(r, n, (k,), torch.float32) for r in range(n)]), out)
    lists = [[torch.zeros(2), torch.zeros(3)] for _ in range(n)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dist.all_gather_coalesced(
            lists, [of(rank, n, (2,), torch.float32), of(rank, n, (3,), torch.float32)]
        )
    for r in range(n):
        same(of(r, n, (3,), torch.float32), lists[r][1])


def check_objects(rank, n):
    found = [None] * n
    dist.all_gather_object(found, {"rank": rank, "text": "x" * rank * 100})
    assert [{"rank": r, "text": "x" * r * 100} for r in range(n)] == found
    things = ["a", 3, {4}] if rank == 0 else [None] * 3
    dist.broadcast_object_list(things, 0)
    assert ["a", 3, {4}] == things
    mine = [None]
    dist.scatter_object_list(
        mine, [f"for {r}" for r in range(n)] if rank == 0 else None, 0
    )
    assert [f"for {rank}"] == mine
    heard = [None] * n if rank == 0 else None
    dist.gather_object(rank * 2, heard, 0)
    if rank == 0:
        assert [r * 2 for r in range(n)] == heard


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
    options = stretto.torch.Options(algorithms={"all_reduce": "all_reduce/ring"})
    group = dist.new_group(pg_options=options)
    x = torch.ones(100)
    dist.all_reduce(x, group=group)
    same(torch.full((100,), float(n)), x)
    kinds = stretto.torch.communicator(group)._launches
    assert ["all_reduce/ring"] == [
        kind.pin for kind in kinds if kind.collective == "all_reduce"
    ]
    dist.destroy_process_group(group)
