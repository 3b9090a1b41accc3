"""What the fused norms have to do, said in float64."""

import torch
from tests.host.torch_ops.checks import check
from torch.library import opcheck

import stretto.torch.operators as st
from stretto.errors import CallError

OPS = torch.ops.stretto
EPS = 1e-5


def due(xs, residual, weight, eps=EPS):
    """Return (norm, sum) in float64."""
    s = torch.stack(xs).double().sum(0)
    if residual is not None:
        s = s + residual.double()
    return s / (s.square().mean(-1, keepdim=True) + eps).sqrt() * weight.double(), s


def arrays(b, dtype=torch.float32, shape=(2, 3, 32)):
    xs = b.draw(*shape, dtype=dtype)
    return xs, b.draw(*shape, dtype=dtype)[0], b.draw(shape[-1], dtype=dtype)[0]


@check
def norms(b):
    """Values are right in every type, with and without a residual, in place too."""
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 0.04)):
        xs, residual, weight = arrays(b, dtype)
        x = xs[b.rank]
        for left in (residual, None):
            want = [w.to(dtype) for w in due(xs, left, weight)]
            got = st.all_reduce_rmsnorm(x, left, weight, EPS, b.comm)
            for name, one, other in zip(("norm", "sum"), got, want, strict=True):
                b.same(f"{name} {dtype}", one, other, tolerance)
        want = [w.to(dtype) for w in due(xs, residual, weight)]
        total = residual.clone()
        out = st.all_reduce_rmsnorm_(x.clone(), total, weight, EPS, b.comm)
        b.same(f"norm in place {dtype}", out, want[0], tolerance)
        b.same(f"sum in place {dtype}", total, want[1], tolerance)


@check
def norms_of_8_bits(b):
    """Numbers times scales are the norm, to the accuracy of three bits."""
    xs, residual, weight = arrays(b)
    want, total = due(xs, residual, weight)
    q, scale, s = st.all_reduce_rmsnorm_fp8(xs[b.rank], residual, weight, EPS, b.comm)
    b.true(f"{q.dtype}", q.dtype == torch.float8_e4m3fn)
    b.true(f"{scale.shape}", scale.shape == (2, 3, 1))
    b.same("norm", q.double() * scale, want, 0.07)
    b.same("the largest", q.float().abs().amax(-1), torch.full((2, 3), 448.0))
    b.same("sum", s.double(), total, 1e-5)
    known = torch.tensor([0.001])
    q, scale, s = st.all_reduce_rmsnorm_fp8(
        xs[b.rank], residual, weight, EPS, b.comm, scale=known
    )
    b.true("the scale comes back", scale is known)
    b.same("sum", s.double(), total, 1e-5)
    b.same("cut off", q.double() * 0.001, want.clamp(-0.448, 0.448), 0.07)


@check
def gradients_of_norms(b):
    """Gradients are those of the same in one process."""
    for with_residual in (True, False):
        xs, residual, weight = arrays(b, torch.float64)
        theirs = [x.clone().requires_grad_() for x in xs]
        left = residual.clone().requires_grad_() if with_residual else None
        by = weight.clone().requires_grad_()
        wants = []
        for _ in range(b.n):  # every rank has outputs of its own
            mine = residual.clone().requires_grad_() if with_residual else None
            w = weight.clone().requires_grad_()
            s = torch.stack(theirs).sum(0) + (mine if with_residual else 0)
            norm = s * (s.square().mean(-1, keepdim=True) + EPS).rsqrt() * w
            wants.append((norm, s, mine, w))
        pulls = b.draw(*xs[0].shape, dtype=torch.float64)
        loss = sum(
            (w[0] * p + w[1] * p.cos()).sum() for w, p in zip(wants, pulls, strict=True)
        )
        loss.backward()
        x = xs[b.rank].clone().requires_grad_()
        norm, s = st.all_reduce_rmsnorm(x, left, by, EPS, b.comm)
        p = pulls[b.rank]
        (norm * p + s * p.cos()).sum().backward()
        b.same("x", x.grad, theirs[b.rank].grad, 1e-9)
        b.same("weight", by.grad, wants[b.rank][3].grad, 1e-9)
        if with_residual:
            b.same("residual", left.grad, wants[b.rank][2].grad, 1e-9)


@check
def norms_registered_well(b):
    """PyTorch's own checks, tracing included; and one graph when compiled."""
    g = st.named(b.comm)
    xs, residual, weight = arrays(b)
    x = xs[b.rank].clone().requires_grad_()
    opcheck(OPS.all_reduce_rmsnorm.default, (x, residual, weight, EPS, g))
    with torch.no_grad():
        again = x.clone(), residual.clone(), weight, EPS, g
        opcheck(OPS.all_reduce_rmsnorm_.default, again)
        opcheck(OPS.all_reduce_rmsnorm_fp8.default, (x, residual, weight, EPS, g))

    def step(x, residual):
        return st.all_reduce_rmsnorm(x * 2, residual, weight, EPS, g)

    torch._dynamo.reset()
    got = torch.compile(step, backend="aot_eager", fullgraph=True)(xs[b.rank], residual)
    b.same("compiled", got[0], step(xs[b.rank], residual)[0])


@check
def norms_that_do_not_fit(b):
    """Shapes that do not belong together are refused before anything is sent."""
    xs, residual, weight = arrays(b)
    x, norm = xs[b.rank], st.all_reduce_rmsnorm
    b.raises("weight", CallError, "last axis", norm, x, residual, weight[1:])
    b.raises("residual", CallError, "the same", norm, x, residual[0], weight)
    b.raises("type", CallError, "the same", norm, x, residual.half(), weight)
    b.raises("scale", CallError, "one number", st.all_reduce_rmsnorm_fp8, x, residual,
             weight, group=b.comm, scale=weight)  # fmt: skip
