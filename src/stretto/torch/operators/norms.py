"""all_reduce, residual add and RMSNorm as one operator (in 8 bits: norms_fp8.py).

On GPUs the add and the norm are in the collective's kernel (an epilogue); on CPUs they
are PyTorch's own, after the collective. Sums are rounded to the type of `x` as an
all_reduce's are; from there to the outputs everything is float32.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor

from stretto.errors import CallError
from stretto.program.epilogues import (
    CASTS,
    Bound,
    Epilogue,
    Expr,
    epilogue,
    row_mean,
    rsqrt,
)
from stretto.runtime.calls import Communicator
from stretto.torch.operators.collectives import plain
from stretto.torch.operators.library import (
    communicator_of,
    define,
    in_graph,
    resolve,
    text_of,
)

OPS = torch.ops.stretto
EPS = 1e-6
FUSED_UP_TO: int | None = None
"""Bytes up to which GPUs do it in one kernel; None: as the machine's profile says.
Larger ones, as in prefill, are moved by the plans that are tuned for plain calls, and
PyTorch's own kernels follow."""
_limits: weakref.WeakKeyDictionary[Communicator, tuple[int, int]] = (
    weakref.WeakKeyDictionary()
)
_TYPES = {getattr(torch, name) for name in CASTS[:3]}
"""Element types of results that epilogues follow."""


def normed_rows(s: Any, weight: Any, eps: Any) -> Any:
    """Return rows scaled to a mean square of one, in an epilogue."""
    return s * rsqrt(row_mean(s * s) + eps) * weight


@epilogue
def add_norm(y: Expr, residual: Expr, weight: Expr, eps: Expr) -> dict[str, Expr]:
    """Add the residual and scale rows to a mean square of one."""
    s = y + residual
    return {"out": normed_rows(s, weight, eps), "residual": s}


@epilogue
def norm(y: Expr, weight: Expr, eps: Expr) -> dict[str, Expr]:
    """Scale rows to a mean square of one."""
    return {"out": normed_rows(y, weight, eps)}


def check(x: Tensor, residual: Tensor | None, weight: Tensor) -> None:
    """Refuse shapes that do not go together."""
    if not x.dim() or weight.shape != x.shape[-1:]:
        raise CallError(
            f"all_reduce_rmsnorm: x has shape {tuple(x.shape)}, weight "
            f"{tuple(weight.shape)}; want one weight for each place of the last axis"
        )
    if residual is not None and (
        residual.shape != x.shape or residual.dtype != x.dtype
    ):
        raise CallError(
            f"all_reduce_rmsnorm: residual has shape {tuple(residual.shape)} of "
            f"{residual.dtype}, x {tuple(x.shape)} of {x.dtype}; want the same"
        )


def fused_up_to(comm: Communicator, *, quantised: bool = False) -> int:
    """Return the bytes of a tensor up to which GPUs do it in one kernel."""
    if FUSED_UP_TO is not None:
        return FUSED_UP_TO
    found = _limits.get(comm)
    if found is None:
        rule = comm.measured()
        found = _limits[comm] = rule.fused_up_to, rule.fused_of_many_up_to
    return found[quantised]


def in_kernel(x: Tensor, *others: Tensor | None) -> bool:
    """Return whether an epilogue can do it."""
    return (
        x.is_cuda
        and x.numel() > 0
        and all(t is None or t.dtype in _TYPES for t in (x, *others))
    )


def _aligned(x: Tensor) -> Tensor:
    """Return a tensor that rows can be read from by 16 bytes."""
    if not x.is_contiguous():
        return x.contiguous()
    return x.clone() if x.data_ptr() % 16 else x


def _bound(form: Epilogue, inputs: dict[str, Any], outputs: dict[str, Any]) -> Bound:
    """Return an epilogue with its arrays; what it takes is known to be named right."""
    return Bound(
        name=form.name,
        graph=form.graph,
        single=form.single,
        inputs=inputs,
        outputs=outputs,
    )


def run_fused(
    comm: Communicator,
    form: Epilogue,
    x: Tensor,
    outputs: dict[str, Tensor],
    *,
    into: Tensor | None = None,
    **inputs: Any,
) -> None:
    """Run a collective with an epilogue; `x` becomes the sum, unless that has a place.

    What cannot be read by 16 bytes is copied when the call has refused it.
    """
    try:
        comm.all_reduce(x, out=into, epilogue=_bound(form, inputs, outputs))
        return
    except CallError:
        pass  # copied, if that helps; else it is raised again
    tensors = {k: v for k, v in inputs.items() if isinstance(v, Tensor)}
    for name, given in tensors.items():
        inputs[name] = _aligned(given)
    whole = _aligned(x)
    y = into if into is not None and not into.data_ptr() % 16 else torch.empty_like(x)
    comm.all_reduce(whole, out=y, epilogue=_bound(form, inputs, outputs))
    if y is not into:
        (x if into is None else into).copy_(y)


# With numbers of the type of x.


def _all_reduce_rmsnorm(
    x: Tensor, residual: Tensor | None, weight: Tensor, eps: float, group: str
) -> tuple[Tensor, Tensor]:
    return normed(resolve(group), x, residual, weight, eps)


def normed(
    comm: Communicator,
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor,
    eps: float,
    *,
    keep: bool = True,
) -> tuple[Tensor, Tensor]:
    """Return the norm, and the sum with the residual.

    Without `keep` a contiguous `x` becomes the sum over ranks.
    """
    known = comm.memo.get((id(weight), x.shape, keep, False))
    if known is not None and residual is not None:
        made = known(x, residual, weight, eps)
        if made is not None:
            return made  # type: ignore[no-any-return]
    check(x, residual, weight)
    x = plain(x)
    into = torch.empty_like(x) if keep else None
    if not in_kernel(x, residual, weight) or x.nbytes > fused_up_to(comm):
        comm.all_reduce(x, out=into)
        return _by_torch(x if into is None else into, residual, weight, eps, keep=keep)
    out = torch.empty_like(x)
    if residual is None:
        run_fused(comm, norm, x, {"out": out}, into=into, weight=weight, eps=eps)
        return out, x if into is None else into
    total = torch.empty_like(x)
    made, given = {"out": out, "residual": total}, {"residual": residual}
    run_fused(comm, add_norm, x, made, into=into, weight=weight, eps=eps, **given)
    _remember(comm, x, weight, {**given, "weight": weight, "eps": eps}, made, into)
    return out, total


def _remember(
    comm: Communicator,
    x: Tensor,
    weight: Tensor,
    inputs: dict[str, Any],
    outputs: dict[str, Tensor],
    into: Tensor | None = None,
) -> None:
    """Know a call again by its weight and shape, with as few questions as are safe."""
    repeat = comm.repeated(x, _bound(add_norm, inputs, outputs), out=into)
    if repeat is None or type(x) is not Tensor:
        return
    its: Any = weakref.ref(weight)
    at, keep = weight.data_ptr(), into is not None
    in_place = outputs["residual"] is inputs["residual"]
    shape, dtype, index, nbytes = x.shape, x.dtype, x.get_device(), x.nbytes

    def again(x: Tensor, residual: Tensor, weight: Any, eps: float) -> Any:
        if its() is not weight or type(eps) is not float:
            return None
        if weight.data_ptr() != at:
            return None
        for one in (x, residual):
            if type(one) is not Tensor or one.dtype is not dtype or one.shape != shape:
                return None
            if one.get_device() != index or not one.is_contiguous() or one.is_neg():
                return None
        out = torch.empty_like(x)
        total = residual if in_place else torch.empty_like(x)
        a, b, o, t = x.data_ptr(), residual.data_ptr(), out.data_ptr(), total.data_ptr()
        y = torch.empty_like(x).data_ptr() if keep else a
        if (a | b | o | t | y) % 16 or -nbytes < a - b < nbytes:
            return None
        return (out, total) if repeat(a, y, (b, at, eps, o, t)) else None

    comm.memo[id(weight), shape, keep, in_place] = again


def _by_torch(
    y: Tensor, residual: Tensor | None, weight: Tensor, eps: float, *, keep: bool
) -> tuple[Tensor, Tensor]:
    """Return both of a sum over ranks, which is used up if `x` was kept."""
    if y.is_cuda and y.dtype == weight.dtype and y.dtype in _TYPES:
        total = y
        if residual is not None:
            total = y.add_(residual) if keep else y + residual
        return torch.nn.functional.rms_norm(total, weight.shape, weight, eps), total
    wide = torch.float64 if y.dtype == torch.float64 else torch.float32
    s = y.to(wide)
    if residual is not None:
        s = s + residual.to(wide)
    normed = s * torch.rsqrt(s.square().mean(-1, keepdim=True) + eps) * weight.to(wide)
    return normed.to(y.dtype), y if residual is None else s.to(y.dtype)


def _two_like(
    x: Tensor, residual: Tensor | None, weight: Tensor, eps: float, group: str
) -> tuple[Tensor, Tensor]:
    check(x, residual, weight)
    like = torch.empty_like(x, memory_format=torch.contiguous_format)
    return like, torch.empty_like(like)


def _keep_norm(ctx: Any, inputs: Any, output: Any) -> None:
    _, residual, weight, ctx.eps, ctx.group = inputs
    ctx.has_residual = residual is not None
    ctx.save_for_backward(output[1], weight)


def _norm_back(ctx: Any, grad_out: Tensor, grad_sum: Tensor) -> Any:
    total, weight = ctx.saved_tensors
    wide = torch.float64 if total.dtype == torch.float64 else torch.float32
    s, g = total.to(wide), grad_out.to(wide)
    scale = torch.rsqrt(s.square().mean(-1, keepdim=True) + ctx.eps)
    unit = s * scale
    by_weight = (g * unit).reshape(-1, s.shape[-1]).sum(0).to(weight.dtype)
    g = g * weight.to(wide)
    inner = scale * (g - unit * (g * unit).mean(-1, keepdim=True))
    both = (inner + grad_sum.to(wide)).to(total.dtype)
    by_x = OPS.all_reduce(both, "sum", ctx.group)
    return by_x, both if ctx.has_residual else None, by_weight, None, None


define(
    "all_reduce_rmsnorm(Tensor x, Tensor? residual, Tensor weight, float eps, "
    "str group) -> (Tensor, Tensor)",
    _all_reduce_rmsnorm,
    fake=_two_like,
    backward=_norm_back,
    context=_keep_norm,
)


def _all_reduce_rmsnorm_(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, group: str
) -> Tensor:
    return normed_(resolve(group), x, residual, weight, eps)


def normed_(
    comm: Communicator, x: Tensor, residual: Tensor, weight: Tensor, eps: float
) -> Tensor:
    """Return the norm; the sum replaces `residual`, and `x` is used up."""
    known = comm.memo.get((id(weight), x.shape, False, True))
    if known is not None:
        both = known(x, residual, weight, eps)
        if both is not None:
            return both[0]
    check(x, residual, weight)
    if in_kernel(x, residual, weight) and x.nbytes <= fused_up_to(comm):
        out = torch.empty_like(x)
        inputs = {"residual": residual, "weight": weight, "eps": eps}
        outputs = {"out": out, "residual": residual}
        try:
            comm.all_reduce(x, epilogue=_bound(add_norm, inputs, outputs))
            _remember(comm, x, weight, inputs, outputs)
            return out
        except CallError:
            pass  # strided, or not at a multiple of 16 bytes
    out, total = normed(comm, x, residual, weight, eps, keep=False)
    residual.copy_(total)
    return out


define(
    "all_reduce_rmsnorm_(Tensor(a!) x, Tensor(b!) residual, Tensor weight, float eps, "
    "str group) -> Tensor",
    _all_reduce_rmsnorm_,
    fake=lambda x, residual, weight, eps, group: x.new_empty(x.shape),
)


# The plain functions.


def all_reduce_rmsnorm(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor,
    eps: float = EPS,
    group: Any = None,
) -> tuple[Tensor, Tensor]:
    """Return the norm of everybody's `x`, summed, plus `residual`; and that sum.

    Without a residual the sum is everybody's `x` alone.
    """
    if in_graph(x, residual, weight):
        both: tuple[Tensor, Tensor] = OPS.all_reduce_rmsnorm(
            x, residual, weight, eps, text_of(group)
        )
        return both
    return normed(communicator_of(group), x, residual, weight, eps)


def all_reduce_rmsnorm_(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float = EPS, group: Any = None
) -> Tensor:
    """Return the norm; the sum replaces `residual`, and `x` is used up."""
    if in_graph(x, residual, weight):
        return OPS.all_reduce_rmsnorm_(x, residual, weight, eps, text_of(group))
    return normed_(communicator_of(group), x, residual, weight, eps)
