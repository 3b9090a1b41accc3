"""The collectives as operators: kernels on our communicator, shapes, gradients.

A name that ends in `_` works in place, one in `_out` writes into what it is given; the
others return new tensors and have a gradient. Parts are joined along the first axis.

    all_reduce (sum, avg)   its gradient is all_reduced the same way
    all_gather              reduce_scatter of the gradient, and the other way round
    all_to_all              all_to_all with counts exchanged
    broadcast               reduce at the root, and the other way round
    gather                  scatter, and the other way round
    permute                 permute the other way round
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from stretto.calls import Communicator
from stretto.errors import CallError
from stretto.torch.operators.library import define, resolve

__all__ = ["gathered", "part_of", "plain"]

OPS = torch.ops.stretto


def plain(x: Tensor) -> Tensor:
    """Return a tensor as a call takes it: contiguous, nothing left to be conjugated."""
    if x.is_conj() or x.is_neg():
        x = x.resolve_conj().resolve_neg()
    return x if x.is_contiguous() else x.contiguous()


def gathered(x: Tensor, n: int) -> list[Any]:
    """Return the shape of n parts, joined along the first axis."""
    return [n * x.shape[0], *x.shape[1:]] if x.dim() else [n]


def part_of(x: Tensor, n: int, verb: str) -> list[Any]:
    """Return the shape of one of n parts."""
    if not x.dim() or x.shape[0] % n:
        raise CallError(
            f"{verb}: x has shape {tuple(x.shape)}; want a first axis that {n} ranks "
            f"divide, or {verb}_v with sizes"
        )
    return [x.shape[0] // n, *x.shape[1:]]


def _linear(op: str, verb: str) -> None:
    """Refuse the gradient of what is not linear."""
    if op not in ("sum", "avg"):
        raise CallError(f"{verb}: {op!r} has no gradient here; want sum or avg")


def _same(x: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _nothing(*_: Any) -> None:
    pass


# all_reduce


def _all_reduce(x: Tensor, op: str, group: str) -> Tensor:
    out = x.new_empty(x.shape)
    resolve(group).all_reduce(plain(x), op, out=out)
    return out


def _all_reduce_(x: Tensor, op: str, group: str) -> None:
    flat = plain(x)
    resolve(group).all_reduce(flat, op)
    if flat is not x:
        x.copy_(flat)


def _all_reduce_out(x: Tensor, out: Tensor, op: str, group: str) -> None:
    flat = out if out.is_contiguous() else out.new_empty(out.shape)
    resolve(group).all_reduce(plain(x), op, out=flat)
    if flat is not out:
        out.copy_(flat)


def _keep_op(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.op, ctx.group = inputs[-2:]


def _all_reduce_back(ctx: Any, grad: Tensor) -> Any:
    _linear(ctx.op, "all_reduce")
    return OPS.all_reduce(grad, ctx.op, ctx.group), None, None


define(
    "all_reduce(Tensor x, str op, str group) -> Tensor",
    _all_reduce,
    fake=_same,
    backward=_all_reduce_back,
    context=_keep_op,
)
define(
    "all_reduce_(Tensor(a!) x, str op, str group) -> ()", _all_reduce_, fake=_nothing
)
define(
    "all_reduce_out(Tensor x, Tensor(a!) out, str op, str group) -> ()",
    _all_reduce_out,
    fake=_nothing,
)


# all_gather and reduce_scatter


def _all_gather(x: Tensor, group: str) -> Tensor:
    comm = resolve(group)
    out = x.new_empty(gathered(x, comm.num_ranks))
    comm.all_gather(plain(x), out=out)
    return out


def _all_gather_out(x: Tensor, out: Tensor, group: str) -> None:
    flat = out if out.is_contiguous() else out.new_empty(out.shape)
    resolve(group).all_gather(plain(x), out=flat)
    if flat is not out:
        out.copy_(flat)


def _all_gather_fake(x: Tensor, group: str) -> Tensor:
    return x.new_empty(gathered(x, resolve(group).num_ranks))


def _keep_group(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.group, ctx.shape = inputs[-1], inputs[0].shape


def _all_gather_back(ctx: Any, grad: Tensor) -> Any:
    n = resolve(ctx.group).num_ranks
    part = OPS.reduce_scatter(grad.reshape(n, -1), "sum", ctx.group)
    return part.view(ctx.shape), None


define(
    "all_gather(Tensor x, str group) -> Tensor",
    _all_gather,
    fake=_all_gather_fake,
    backward=_all_gather_back,
    context=_keep_group,
)
define(
    "all_gather_out(Tensor x, Tensor(a!) out, str group) -> ()",
    _all_gather_out,
    fake=_nothing,
)


def _reduce_scatter(x: Tensor, op: str, group: str) -> Tensor:
    comm = resolve(group)
    out = x.new_empty(part_of(x, comm.num_ranks, "reduce_scatter"))
    comm.reduce_scatter(plain(x), op, out=out)
    return out


def _reduce_scatter_out(x: Tensor, out: Tensor, op: str, group: str) -> None:
    flat = out if out.is_contiguous() else out.new_empty(out.shape)
    resolve(group).reduce_scatter(plain(x), op, out=flat)
    if flat is not out:
        out.copy_(flat)


def _reduce_scatter_fake(x: Tensor, op: str, group: str) -> Tensor:
    return x.new_empty(part_of(x, resolve(group).num_ranks, "reduce_scatter"))


def _reduce_scatter_back(ctx: Any, grad: Tensor) -> Any:
    _linear(ctx.op, "reduce_scatter")
    if ctx.op == "avg":
        grad = grad / resolve(ctx.group).num_ranks
    return OPS.all_gather(grad, ctx.group), None, None


define(
    "reduce_scatter(Tensor x, str op, str group) -> Tensor",
    _reduce_scatter,
    fake=_reduce_scatter_fake,
    backward=_reduce_scatter_back,
    context=_keep_op,
)
define(
    "reduce_scatter_out(Tensor x, Tensor(a!) out, str op, str group) -> ()",
    _reduce_scatter_out,
    fake=_nothing,
)


# The same with unequal parts: sizes are rows of every rank's part.


def _elements(x: Tensor, sizes: Sequence[int]) -> list[int]:
    """Return the elements of so many rows of `x`."""
    row = math.prod(x.shape[1:])
    return [int(s) * row for s in sizes]


def _check_sizes(
    x: Tensor, sizes: Sequence[int], rows: int, comm: Communicator
) -> None:
    if len(sizes) != comm.num_ranks or not x.dim() or x.shape[0] != rows:
        raise CallError(
            f"rank {comm.rank}: sizes={list(sizes)} for x of shape {tuple(x.shape)}; "
            f"want {comm.num_ranks} numbers of rows that fit it"
        )


def _all_gather_v(x: Tensor, sizes: Sequence[int], group: str) -> Tensor:
    comm = resolve(group)
    _check_sizes(x, sizes, sizes[comm.rank], comm)
    out = x.new_empty([sum(sizes), *x.shape[1:]])
    comm.all_gather_v(plain(x).view(-1), _elements(x, sizes), out=out.view(-1))
    return out


def _all_gather_v_fake(x: Tensor, sizes: Sequence[int], group: str) -> Tensor:
    return x.new_empty([sum(sizes), *x.shape[1:]])


def _keep_sizes(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.sizes, ctx.group = inputs[1], inputs[-1]
    ctx.op = inputs[2] if len(inputs) > 3 else "sum"


def _all_gather_v_back(ctx: Any, grad: Tensor) -> Any:
    return OPS.reduce_scatter_v(grad, ctx.sizes, "sum", ctx.group), None, None


def _reduce_scatter_v(x: Tensor, sizes: Sequence[int], op: str, group: str) -> Tensor:
    comm = resolve(group)
    _check_sizes(x, sizes, sum(sizes), comm)
    out = x.new_empty([sizes[comm.rank], *x.shape[1:]])
    flat = plain(x).view(-1)
    comm.reduce_scatter_v(flat, _elements(x, sizes), op, out=out.view(-1))
    return out


def _reduce_scatter_v_fake(
    x: Tensor, sizes: Sequence[int], op: str, group: str
) -> Tensor:
    return x.new_empty([sizes[resolve(group).rank], *x.shape[1:]])


def _reduce_scatter_v_back(ctx: Any, grad: Tensor) -> Any:
    _linear(ctx.op, "reduce_scatter_v")
    if ctx.op == "avg":
        grad = grad / resolve(ctx.group).num_ranks
    return OPS.all_gather_v(grad, ctx.sizes, ctx.group), None, None, None


define(
    "all_gather_v(Tensor x, SymInt[] sizes, str group) -> Tensor",
    _all_gather_v,
    fake=_all_gather_v_fake,
    backward=_all_gather_v_back,
    context=_keep_sizes,
)
define(
    "reduce_scatter_v(Tensor x, SymInt[] sizes, str op, str group) -> Tensor",
    _reduce_scatter_v,
    fake=_reduce_scatter_v_fake,
    backward=_reduce_scatter_v_back,
    context=_keep_sizes,
)


# all_to_all


def _all_to_all(x: Tensor, group: str) -> Tensor:
    out = x.new_empty(x.shape)
    comm = resolve(group)
    part_of(x, comm.num_ranks, "all_to_all")
    comm.all_to_all(plain(x), out=out)
    return out


def _all_to_all_back(ctx: Any, grad: Tensor) -> Any:
    return OPS.all_to_all(grad, ctx.group), None


define(
    "all_to_all(Tensor x, str group) -> Tensor",
    _all_to_all,
    fake=_same,
    backward=_all_to_all_back,
    context=_keep_group,
)


def _all_to_all_v(
    x: Tensor, out_splits: Sequence[int], in_splits: Sequence[int], group: str
) -> Tensor:
    comm = resolve(group)
    _check_sizes(x, in_splits, sum(in_splits), comm)
    if len(out_splits) != comm.num_ranks:
        raise CallError(
            f"rank {comm.rank}: out_splits={list(out_splits)}; want "
            f"{comm.num_ranks} numbers"
        )
    out = x.new_empty([sum(out_splits), *x.shape[1:]])
    comm.all_to_all_v(plain(x).view(-1), _elements(x, in_splits), out=out.view(-1))
    return out


def _all_to_all_v_fake(
    x: Tensor, out_splits: Sequence[int], in_splits: Sequence[int], group: str
) -> Tensor:
    return x.new_empty([sum(out_splits), *x.shape[1:]])


def _keep_splits(ctx: Any, inputs: Any, output: Any) -> None:
    _, ctx.out_splits, ctx.in_splits, ctx.group = inputs


def _all_to_all_v_back(ctx: Any, grad: Tensor) -> Any:
    back = OPS.all_to_all_v(grad, ctx.in_splits, ctx.out_splits, ctx.group)
    return back, None, None, None


define(
    "all_to_all_v(Tensor x, SymInt[] out_splits, SymInt[] in_splits, str group)"
    " -> Tensor",
    _all_to_all_v,
    fake=_all_to_all_v_fake,
    backward=_all_to_all_v_back,
    context=_keep_splits,
)


def _all_to_all_axes(x: Tensor, split: int, concat: int, group: str) -> Tensor:
    comm = resolve(group)
    out = x.new_empty(_moved(x, split, concat, comm.num_ranks))
    comm.all_to_all(plain(x), split=split, concat=concat, out=out)
    return out


def _moved(x: Tensor, split: int, concat: int, n: int) -> list[Any]:
    """Return the shape of parts along one axis, joined along another."""
    shape = list(x.shape)
    if not x.dim() or shape[split] % n:
        raise CallError(
            f"all_to_all_axes: x has shape {tuple(x.shape)}; want an axis {split} "
            f"that {n} ranks divide"
        )
    shape[split] //= n
    shape[concat] *= n
    return shape


def _all_to_all_axes_fake(x: Tensor, split: int, concat: int, group: str) -> Tensor:
    return x.new_empty(_moved(x, split, concat, resolve(group).num_ranks))


def _keep_axes(ctx: Any, inputs: Any, output: Any) -> None:
    _, ctx.split, ctx.concat, ctx.group = inputs


def _all_to_all_axes_back(ctx: Any, grad: Tensor) -> Any:
    back = OPS.all_to_all_axes(grad, ctx.concat, ctx.split, ctx.group)
    return back, None, None, None


define(
    "all_to_all_axes(Tensor x, int split, int concat, str group) -> Tensor",
    _all_to_all_axes,
    fake=_all_to_all_axes_fake,
    backward=_all_to_all_axes_back,
    context=_keep_axes,
)
