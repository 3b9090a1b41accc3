"""Operators with a root, and permute: broadcast, reduce, gather, scatter.

What a rank has no part in is zeros (reduce, permute) or has no rows (gather), so that
every rank has a tensor, and every gradient a meaning.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from stretto.torch.operators.collectives import gathered, part_of, plain
from stretto.torch.operators.library import define, resolve

__all__: list[str] = []

OPS = torch.ops.stretto


def _same(x: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _keep_root(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.root, ctx.group = inputs[-2:]
    ctx.shape = inputs[0].shape


# broadcast and reduce


def _broadcast(x: Tensor, root: int, group: str) -> Tensor:
    out = plain(x).clone()
    resolve(group).broadcast(out, root=root)
    return out


def _broadcast_(x: Tensor, root: int, group: str) -> None:
    flat = plain(x)
    resolve(group).broadcast(flat, root=root)
    if flat is not x:
        x.copy_(flat)


def _broadcast_back(ctx: Any, grad: Tensor) -> Any:
    return OPS.reduce(grad, "sum", ctx.root, ctx.group), None, None


define(
    "broadcast(Tensor x, int root, str group) -> Tensor",
    _broadcast,
    fake=_same,
    backward=_broadcast_back,
    context=_keep_root,
)
define(
    "broadcast_(Tensor(a!) x, int root, str group) -> ()",
    _broadcast_,
    fake=lambda *_: None,
)


def _reduce(x: Tensor, op: str, root: int, group: str) -> Tensor:
    comm = resolve(group)
    here = comm.rank == root
    out = x.new_empty(x.shape) if here else x.new_zeros(x.shape)
    comm.reduce(plain(x), op, root=root, out=out if here else None)
    return out


def _keep_reduce(ctx: Any, inputs: Any, output: Any) -> None:
    _, ctx.op, ctx.root, ctx.group = inputs


def _reduce_back(ctx: Any, grad: Tensor) -> Any:
    if ctx.op not in ("sum", "avg"):
        raise NotImplementedError(f"reduce: {ctx.op!r} has no gradient; want sum, avg")
    if ctx.op == "avg":
        grad = grad / resolve(ctx.group).num_ranks
    return OPS.broadcast(grad, ctx.root, ctx.group), None, None, None


define(
    "reduce(Tensor x, str op, int root, str group) -> Tensor",
    _reduce,
    fake=_same,
    backward=_reduce_back,
    context=_keep_reduce,
)


# gather and scatter


def _gather(x: Tensor, root: int, group: str) -> Tensor:
    comm = resolve(group)
    out = _gather_fake(x, root, group)
    comm.gather(plain(x), root=root, out=out if comm.rank == root else None)
    return out


def _gather_fake(x: Tensor, root: int, group: str) -> Tensor:
    comm = resolve(group)
    whole = gathered(x, comm.num_ranks)
    return x.new_empty(whole if comm.rank == root else [0, *whole[1:]])


def _gather_back(ctx: Any, grad: Tensor) -> Any:
    return OPS.scatter(grad, ctx.shape, ctx.root, ctx.group), None, None


define(
    "gather(Tensor x, int root, str group) -> Tensor",
    _gather,
    fake=_gather_fake,
    backward=_gather_back,
    context=_keep_root,
)


def _scatter(x: Tensor, part: Sequence[int], root: int, group: str) -> Tensor:
    comm = resolve(group)
    out = x.new_empty(list(part))
    if comm.rank != root:
        comm.scatter(root=root, out=out)
        return out
    if x.numel() != comm.num_ranks * out.numel():
        part_of(x, comm.num_ranks, "scatter")  # says what is wrong with the first axis
    whole = plain(x).view(comm.num_ranks, *out.shape)
    comm.scatter(whole, root=root, out=out)
    return out


def _scatter_fake(x: Tensor, part: Sequence[int], root: int, group: str) -> Tensor:
    return x.new_empty(list(part))


def _scatter_back(ctx: Any, grad: Tensor) -> Any:
    whole = OPS.gather(grad, ctx.root, ctx.group)
    if resolve(ctx.group).rank != ctx.root:
        return grad.new_zeros(ctx.shape), None, None, None
    return whole.view(ctx.shape), None, None, None


define(
    "scatter(Tensor x, SymInt[] part, int root, str group) -> Tensor",
    _scatter,
    fake=_scatter_fake,
    backward=_scatter_back,
    context=_keep_root,
)


# permute


def _permute(
    x: Tensor, sources: Sequence[int], targets: Sequence[int], group: str
) -> Tensor:
    out = x.new_empty(x.shape)
    pairs = tuple(zip(sources, targets, strict=True))
    resolve(group).permute(plain(x), pairs, out=out)
    return out


def _keep_pairs(ctx: Any, inputs: Any, output: Any) -> None:
    _, ctx.sources, ctx.targets, ctx.group = inputs


def _permute_back(ctx: Any, grad: Tensor) -> Any:
    back = OPS.permute(grad, ctx.targets, ctx.sources, ctx.group)
    return back, None, None, None


define(
    "permute(Tensor x, int[] sources, int[] targets, str group) -> Tensor",
    _permute,
    fake=_same,
    backward=_permute_back,
    context=_keep_pairs,
)
