"""Matmuls with their collectives: values and gradients, in one process's terms."""

import torch
from tests.host.torch_ops.checks import check
from torch.library import opcheck

import stretto.torch.operators as st
from stretto.errors import CallError
from stretto.torch.operators import matmuls as ours

OPS = torch.ops.stretto


def gather_case(b, dtype):
    """Return everybody's x and w, and their products."""
    xs = [x.requires_grad_() for x in b.draw(4, 6, dtype=dtype)]
    ws = [w.requires_grad_() for w in b.draw(6, 5, dtype=dtype)]
    return xs, ws, [torch.cat(xs) @ w for w in ws]


def scatter_case(b, dtype):
    xs = [x.requires_grad_() for x in b.draw(4 * b.n, 6, dtype=dtype)]
    ws = [w.requires_grad_() for w in b.draw(6, 5, dtype=dtype)]
    total = sum(x @ w for x, w in zip(xs, ws, strict=True))
    return xs, ws, list(total.chunk(b.n))


@check
def matmuls(b):
    """Values and gradients are those of the same in one process, however moved."""
    limit = ours.OVERLAP_FROM
    for ours.OVERLAP_FROM in (limit, 0):
        both_matmuls(b)
    ours.OVERLAP_FROM = limit


def both_matmuls(b):
    for case, call in (
        (gather_case, st.all_gather_matmul),
        (scatter_case, st.matmul_reduce_scatter),
    ):
        for turned in (False, True):
            xs, ws, want = case(b, torch.float64)
            x = xs[b.rank].detach().clone().requires_grad_()
            w = ws[b.rank].detach().clone()
            w = (w.t().contiguous().t() if turned else w).requires_grad_()
            got = call(x, w, b.comm)
            what = f"{call.__name__} {turned}"
            b.same(what, got.detach(), want[b.rank].detach(), 1e-9)
            with torch.no_grad():
                b.same(f"{what}, no gradient", call(x, w, b.comm), got, 1e-12)
            pulls = [b.randn(5).double() for _ in want]
            (got * pulls[b.rank]).sum().backward()
            sum((d * p).sum() for d, p in zip(want, pulls, strict=True)).backward()
            b.same(f"{what}: by x", x.grad, xs[b.rank].grad, 1e-9)
            b.same(f"{what}: by w", w.grad, ws[b.rank].grad, 1e-9)


@check
def sharded_matmuls_have_the_bits_of_one_rank(b):
    """Of eight shards, each multiplied alone: a tree, with NumPy's additions."""
    if b.n not in (1, 2, 4, 8):
        return
    each, k = 8 // b.n, 6
    gen = torch.Generator().manual_seed(5)
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.randn(16, 8 * k, generator=gen).to(dtype)
        w = torch.randn(8 * k, 5, generator=gen).to(dtype)
        level = [x[:, i : i + k].contiguous() @ w[i : i + k] for i in range(0, 48, k)]
        while len(level) > 1:
            pairs = zip(level[::2], level[1::2], strict=True)
            level = [(one.float() + two.float()).to(dtype) for one, two in pairs]
        mine = slice(b.rank * each * k, (b.rank + 1) * each * k)
        a, c = x[:, mine], w[mine]
        whole = st.matmul_all_reduce(a, c, b.comm, shards=8)
        b.same(f"whole, {dtype}", whole, level[0], 0)
        turned = c.t().contiguous().t().requires_grad_()
        part = st.matmul_reduce_scatter(a, turned, b.comm, shards=8)
        rows = 16 // b.n
        mine = slice(b.rank * rows, (b.rank + 1) * rows)
        b.same(f"part, {dtype}", part.detach(), level[0][mine], 0)
        part.sum().backward()
        want = a.t().double() @ torch.ones(16, 5).double()
        b.same(f"by w, {dtype}", turned.grad.double(), want, 0.05)
    b.raises("k", CallError, "divide", st.matmul_all_reduce, a[:, 1:], c, b.comm)
    odd = {"shards": 3, "group": b.comm}
    b.raises("shards", CallError, "power of two", st.partial_matmul, a, c, **odd)


@check
def matmuls_registered_well(b):
    """Shapes and tracing are right; what does not fit is refused; bf16 is close."""
    g = st.named(b.comm)
    x, w = b.randn(4 * b.n, 6), b.randn(6, 5)
    grad = x.clone().requires_grad_()
    opcheck(OPS.all_gather_matmul.default, (grad, w, True, g))
    opcheck(OPS.matmul_reduce_scatter.default, (grad, w, g))
    b.raises("inner", CallError, "(rows, k)", st.all_gather_matmul, x, w.t(), b.comm)
    b.raises("rows", CallError, "divide", st.matmul_reduce_scatter, x[1:], w, b.comm)
    xs, ws, want = scatter_case(b, torch.bfloat16)
    got = st.matmul_reduce_scatter(xs[b.rank].detach(), ws[b.rank].detach(), b.comm)
    b.same("bf16", got, want[b.rank].detach(), 0.05)
    empty = st.all_gather_matmul(x[:0], w, b.comm)
    b.same("no rows", empty, torch.zeros(0, 5))
