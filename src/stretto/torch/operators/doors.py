"""The operators as plain functions: where nothing is traced, the communicator's calls.

An operator costs PyTorch's dispatcher more than a small call takes. Under
`torch.compile`, with tensors that are not plain, and where a gradient is wanted, a
function is its operator. `group` is None (the default group), a ProcessGroup, a name or
a Communicator. Functions whose names end in `_` work in place.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from stretto.errors import CallError
from stretto.torch.operators.collectives import gathered, part_of
from stretto.torch.operators.library import communicator_of, in_graph, text_of

OPS = torch.ops.stretto


def all_reduce(
    x: Tensor, op: str = "sum", group: Any = None, *, out: Tensor | None = None
) -> Tensor:
    """Return everybody's `x` combined, in `out` or a new tensor."""
    if in_graph(x, out):
        if out is None:
            return OPS.all_reduce(x, op, text_of(group))
        OPS.all_reduce_out(x, out, op, text_of(group))
        return out
    if out is None:
        out = torch.empty_like(x)
    communicator_of(group).all_reduce(x, op, out=out)
    return out


def all_reduce_(x: Tensor, op: str = "sum", group: Any = None) -> Tensor:
    """Combine everybody's `x` in `x` itself, and return it."""
    if in_graph(x):
        _no_gradient(x, "all_reduce_", "all_reduce")
        if torch.compiler.is_compiling():  # what passes over graphs can read
            return x.copy_(OPS.all_reduce(x, op, text_of(group)))
        OPS.all_reduce_(x, op, text_of(group))
    else:
        communicator_of(group).all_reduce(x, op)
    return x


def all_gather(
    x: Tensor, group: Any = None, *, dim: int = 0, out: Tensor | None = None
) -> Tensor:
    """Return everybody's `x`, joined along an axis in rank order."""
    if dim % max(1, x.dim()):
        whole = OPS.all_gather(x.movedim(dim, 0), text_of(group)).movedim(0, dim)
        return whole.contiguous() if out is None else out.copy_(whole)
    if in_graph(x, out):
        if out is None:
            return OPS.all_gather(x, text_of(group))
        OPS.all_gather_out(x, out, text_of(group))
        return out
    comm = communicator_of(group)
    if out is None:
        out = x.new_empty(gathered(x, comm.num_ranks))
    comm.all_gather(x, out=out)
    return out


def reduce_scatter(
    x: Tensor,
    op: str = "sum",
    group: Any = None,
    *,
    dim: int = 0,
    out: Tensor | None = None,
) -> Tensor:
    """Return this rank's part, along an axis, of everybody's `x` combined."""
    if dim % max(1, x.dim()):
        part = OPS.reduce_scatter(x.movedim(dim, 0).contiguous(), op, text_of(group))
        part = part.movedim(0, dim)
        return part.contiguous() if out is None else out.copy_(part)
    if in_graph(x, out):
        if out is None:
            return OPS.reduce_scatter(x, op, text_of(group))
        OPS.reduce_scatter_out(x, out, op, text_of(group))
        return out
    comm = communicator_of(group)
    if out is None:
        out = x.new_empty(part_of(x, comm.num_ranks, "reduce_scatter"))
    comm.reduce_scatter(x, op, out=out)
    return out


def all_gather_v(x: Tensor, sizes: Sequence[int], group: Any = None) -> Tensor:
    """Return everybody's rows, `sizes[r]` of rank r, in rank order."""
    return OPS.all_gather_v(x, sizes, text_of(group))


def reduce_scatter_v(
    x: Tensor, sizes: Sequence[int], op: str = "sum", group: Any = None
) -> Tensor:
    """Return this rank's `sizes[rank]` rows of everybody's `x` combined."""
    return OPS.reduce_scatter_v(x, sizes, op, text_of(group))


def all_to_all(
    x: Tensor,
    group: Any = None,
    *,
    out_splits: Sequence[int] | None = None,
    in_splits: Sequence[int] | None = None,
    split: int = 0,
    concat: int = 0,
) -> Tensor:
    """Return this rank's part of everybody's `x`, joined in rank order.

    Parts are equal along axis `split` and joined along axis `concat`; or, with both
    kinds of splits, rows: `in_splits[r]` go to rank r, `out_splits[r]` come from it.
    """
    if (out_splits is None) != (in_splits is None):
        raise CallError(
            "all_to_all: one of out_splits and in_splits; want both or none"
        )
    if out_splits is not None:
        return OPS.all_to_all_v(x, out_splits, in_splits, text_of(group))
    if split % max(1, x.dim()) or concat % max(1, x.dim()):
        return OPS.all_to_all_axes(x, split, concat, text_of(group))
    if in_graph(x):
        return OPS.all_to_all(x, text_of(group))
    return communicator_of(group).all_to_all(x, out=torch.empty_like(x))


def broadcast(x: Tensor, root: int = 0, group: Any = None) -> Tensor:
    """Return the root's `x`, a new tensor."""
    return OPS.broadcast(x, root, text_of(group))


def broadcast_(x: Tensor, root: int = 0, group: Any = None) -> Tensor:
    """Give everybody the root's `x`, in `x` itself, and return it."""
    if in_graph(x):
        _no_gradient(x, "broadcast_", "broadcast")
        if torch.compiler.is_compiling():  # what passes over graphs can read
            return x.copy_(OPS.broadcast(x, root, text_of(group)))
        OPS.broadcast_(x, root, text_of(group))
    else:
        communicator_of(group).broadcast(x, root=root)
    return x


def reduce(x: Tensor, op: str = "sum", root: int = 0, group: Any = None) -> Tensor:
    """Return everybody's `x` combined at the root, and zeros elsewhere."""
    return OPS.reduce(x, op, root, text_of(group))


def gather(x: Tensor, root: int = 0, group: Any = None) -> Tensor:
    """Return everybody's `x`, joined along the first axis at the root; else no rows."""
    return OPS.gather(x, root, text_of(group))


def scatter(x: Tensor, part: Sequence[int], root: int = 0, group: Any = None) -> Tensor:
    """Return this rank's part, of that shape, of the root's `x`.

    Elsewhere `x` only tells type and device; it may have no elements.
    """
    return OPS.scatter(x, part, root, text_of(group))


def permute(x: Tensor, pairs: Iterable[tuple[int, int]], group: Any = None) -> Tensor:
    """Return the `x` of whom (source, target) in `pairs` names for us, else zeros."""
    pairs = list(pairs)
    sources, targets = [a for a, _ in pairs], [b for _, b in pairs]
    return OPS.permute(x, sources, targets, text_of(group))


def barrier(group: Any = None) -> None:
    """Return when everybody has come."""
    communicator_of(group).barrier()


def _no_gradient(x: Tensor, verb: str, other: str) -> None:
    if x.requires_grad and torch.is_grad_enabled():
        raise CallError(
            f"{verb}: x requires a gradient, which a call in place has not; use "
            f"{other}, which returns a new tensor"
        )
