"""What every collective of torch.distributed gives, in all its forms, on any ranks."""

from __future__ import annotations

import warnings

import torch
import torch.distributed as dist
from tests.host.torch.comparing import (
    COMPLEX,
    FLOATS,
    INTS,
    MOVED,
    both,
    of,
    raises,
    same,
)
from torch.distributed import ReduceOp

import stretto


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
