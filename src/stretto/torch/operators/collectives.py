"""The collectives as operators: kernels on our communicator, shapes, gradients.

A name that ends in `_` works in place, one in `_out` writes into what it is given; the
others return new tensors and have a gradient. Parts are joined along the first axis.

    all_reduce (sum, avg)   its gradient is all_reduced the same way
    all_gather              reduce_scatter of the gradient, and the other way round
    all_to_all              all_to_all with counts exchanged
    broadcast               reduce at the root, and the other way round
    gather                  scatter, and the other way round
    permute                 permute the other way round

What a rank has no part in is zeros (reduce, permute) or has no rows (gather), so that
every rank has a tensor, and every gradient a meaning.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from stretto.errors import CallError
from stretto.runtime.calls import Communicator
from stretto.torch.operators.library import define, resolve

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


def define_filled(
    schema: str,
    shape: Callable[..., Sequence[Any]],
    call: Callable[..., object],
    backward: Callable[..., Any],
) -> None:
    """Define an operator that returns a tensor of a shape, which a call fills.

    `shape` takes what the operator does; `call` a communicator, the plain input and the
    output, then what comes between input and group.
    """

    def fake(x: Tensor, *rest: Any) -> Tensor:
        return x.new_empty(shape(x, *rest))

    def kernel(x: Tensor, *rest: Any) -> Tensor:
        out = fake(x, *rest)
        call(resolve(rest[-1]), plain(x), out, *rest[:-1])
        return out

    define(f"{schema} -> Tensor", kernel, fake=fake, backward=backward)


def _define_writing(
    schema: str, call: Callable[..., object], *, filled: bool = False
) -> None:
    """Define an operator whose call fills the last tensor that it is given.

    `filled` says that there is one tensor only, which is the call's input, too.
    """

    def kernel(*given: Any) -> None:
        at = 0 if filled else 1
        with _flat(given[at], filled=filled) as out:
            x = out if filled else plain(given[0])
            call(resolve(given[-1]), x, out, *given[at + 1 : -1])

    define(f"{schema} -> ()", kernel, fake=lambda *_: None)


@contextlib.contextmanager
def _flat(out: Tensor, *, filled: bool) -> Iterator[Tensor]:
    """Give a tensor as a call takes it; what is written there, `out` has afterwards."""
    flat = out
    if filled:
        flat = plain(out)
    elif not out.is_contiguous():
        flat = out.new_empty(out.shape)
    yield flat
    if flat is not out:
        out.copy_(flat)


def _same(x: Tensor, *_: Any) -> Sequence[Any]:
    return list(x.shape)


def _unsummed(ctx: Any, grad: Tensor, verb: str) -> Tensor:
    """Return the gradient of every input of a sum; refuse what is not linear."""
    if ctx.op not in ("sum", "avg"):
        raise CallError(f"{verb}: {ctx.op!r} has no gradient here; want sum or avg")
    return grad / resolve(ctx.group).num_ranks if ctx.op == "avg" else grad


# all_reduce


def _all_reduce(comm: Communicator, x: Tensor, out: Tensor, op: str) -> None:
    comm.all_reduce(x, op, out=None if out is x else out)


def _all_reduce_back(ctx: Any, grad: Tensor) -> Any:
    _unsummed(ctx, grad, "all_reduce")
    return OPS.all_reduce(grad, ctx.op, ctx.group)


define_filled(
    "all_reduce(Tensor x, str op, str group)", _same, _all_reduce, _all_reduce_back
)
_define_writing(
    "all_reduce_(Tensor(a!) x, str op, str group)", _all_reduce, filled=True
)
_define_writing(
    "all_reduce_out(Tensor x, Tensor(a!) out, str op, str group)", _all_reduce
)


# all_gather and reduce_scatter


def _all_gather(comm: Communicator, x: Tensor, out: Tensor) -> None:
    comm.all_gather(x, out=out)


def _all_gather_back(ctx: Any, grad: Tensor) -> Any:
    n = resolve(ctx.group).num_ranks
    part = OPS.reduce_scatter(grad.reshape(n, -1), "sum", ctx.group)
    return part.view(ctx.shape)


def _reduce_scatter(comm: Communicator, x: Tensor, out: Tensor, op: str) -> None:
    comm.reduce_scatter(x, op, out=out)


def _reduce_scatter_back(ctx: Any, grad: Tensor) -> Any:
    return OPS.all_gather(_unsummed(ctx, grad, "reduce_scatter"), ctx.group)


define_filled(
    "all_gather(Tensor x, str group)",
    lambda x, group: gathered(x, resolve(group).num_ranks),
    _all_gather,
    _all_gather_back,
)
_define_writing("all_gather_out(Tensor x, Tensor(a!) out, str group)", _all_gather)
define_filled(
    "reduce_scatter(Tensor x, str op, str group)",
    lambda x, op, group: part_of(x, resolve(group).num_ranks, "reduce_scatter"),
    _reduce_scatter,
    _reduce_scatter_back,
)
_define_writing(
    "reduce_scatter_out(Tensor x, Tensor(a!) out, str op, str group)", _reduce_scatter
)


# The same with unequal parts: sizes are rows of every rank's part.


def _elements(
    x: Tensor, sizes: Sequence[int], comm: Communicator, rows: int
) -> list[int]:
    """Return the elements of so many rows of `x`, which are to be its own."""
    if len(sizes) != comm.num_ranks or not x.dim() or x.shape[0] != rows:
        raise CallError(
            f"rank {comm.rank}: sizes={list(sizes)} for x of shape {tuple(x.shape)}; "
            f"want {comm.num_ranks} numbers of rows that fit it"
        )
    row = math.prod(x.shape[1:])
    return [int(s) * row for s in sizes]


def _rows_of(sizes: Sequence[int], rank: int) -> int:
    """Return the rows of a rank; 0 where there are too few sizes: a call refuses."""
    return sizes[rank] if rank < len(sizes) else 0


def _all_gather_v(
    comm: Communicator, x: Tensor, out: Tensor, sizes: Sequence[int]
) -> None:
    counts = _elements(x, sizes, comm, _rows_of(sizes, comm.rank))
    comm.all_gather_v(x.view(-1), counts, out=out.view(-1))


def _reduce_scatter_v(
    comm: Communicator, x: Tensor, out: Tensor, sizes: Sequence[int], op: str
) -> None:
    counts = _elements(x, sizes, comm, sum(sizes))
    comm.reduce_scatter_v(x.view(-1), counts, op, out=out.view(-1))


def _reduce_scatter_v_back(ctx: Any, grad: Tensor) -> Any:
    grad = _unsummed(ctx, grad, "reduce_scatter_v")
    return OPS.all_gather_v(grad, ctx.sizes, ctx.group)


define_filled(
    "all_gather_v(Tensor x, SymInt[] sizes, str group)",
    lambda x, sizes, group: [sum(sizes), *x.shape[1:]],
    _all_gather_v,
    lambda ctx, grad: OPS.reduce_scatter_v(grad, ctx.sizes, "sum", ctx.group),
)
define_filled(
    "reduce_scatter_v(Tensor x, SymInt[] sizes, str op, str group)",
    lambda x, sizes, op, group: [
        _rows_of(sizes, resolve(group).rank),
        *x.shape[1:],
    ],
    _reduce_scatter_v,
    _reduce_scatter_v_back,
)


# all_to_all


def _all_to_all(comm: Communicator, x: Tensor, out: Tensor) -> None:
    part_of(x, comm.num_ranks, "all_to_all")
    comm.all_to_all(x, out=out)


def _all_to_all_v(
    comm: Communicator,
    x: Tensor,
    out: Tensor,
    out_splits: Sequence[int],
    in_splits: Sequence[int],
) -> None:
    counts = _elements(x, in_splits, comm, sum(in_splits))
    if len(out_splits) != comm.num_ranks:
        raise CallError(
            f"rank {comm.rank}: out_splits={list(out_splits)}; want "
            f"{comm.num_ranks} numbers"
        )
    comm.all_to_all_v(x.view(-1), counts, out=out.view(-1))


def _all_to_all_axes_shape(x: Tensor, split: int, concat: int, group: str) -> list[Any]:
    """Return the shape of parts along one axis, joined along another."""
    n, shape = resolve(group).num_ranks, list(x.shape)
    if not x.dim() or shape[split] % n:
        raise CallError(
            f"all_to_all_axes: x has shape {tuple(x.shape)}; want an axis {split} "
            f"that {n} ranks divide"
        )
    shape[split] //= n
    shape[concat] *= n
    return shape


define_filled(
    "all_to_all(Tensor x, str group)",
    _same,
    _all_to_all,
    lambda ctx, grad: OPS.all_to_all(grad, ctx.group),
)
define_filled(
    "all_to_all_v(Tensor x, SymInt[] out_splits, SymInt[] in_splits, str group)",
    lambda x, out_splits, *_: [sum(out_splits), *x.shape[1:]],
    _all_to_all_v,
    lambda ctx, grad: OPS.all_to_all_v(grad, ctx.in_splits, ctx.out_splits, ctx.group),
)
define_filled(
    "all_to_all_axes(Tensor x, int split, int concat, str group)",
    _all_to_all_axes_shape,
    lambda comm, x, out, split, concat: comm.all_to_all(
        x, split=split, concat=concat, out=out
    ),
    lambda ctx, grad: OPS.all_to_all_axes(grad, ctx.concat, ctx.split, ctx.group),
)


# With a root, and permute.


def _broadcast(comm: Communicator, x: Tensor, out: Tensor, root: int) -> None:
    if out is not x:
        out.copy_(x)
    comm.broadcast(out, root=root)


def _reduce(comm: Communicator, x: Tensor, out: Tensor, op: str, root: int) -> None:
    here = comm.rank == root
    comm.reduce(x, op, root=root, out=out if here else None)
    if not here:
        out.zero_()


def _reduce_back(ctx: Any, grad: Tensor) -> Any:
    return OPS.broadcast(_unsummed(ctx, grad, "reduce"), ctx.root, ctx.group)


def _gather(comm: Communicator, x: Tensor, out: Tensor, root: int) -> None:
    comm.gather(x, root=root, out=out if comm.rank == root else None)


def _gather_shape(x: Tensor, root: int, group: str) -> list[Any]:
    comm = resolve(group)
    whole = gathered(x, comm.num_ranks)
    return whole if comm.rank == root else [0, *whole[1:]]


def _scatter(
    comm: Communicator, x: Tensor, out: Tensor, part: Sequence[int], root: int
) -> None:
    if comm.rank != root:
        comm.scatter(root=root, out=out)
        return
    if x.numel() != comm.num_ranks * out.numel():
        part_of(x, comm.num_ranks, "scatter")  # says what is wrong with the first axis
    comm.scatter(x.view(comm.num_ranks, *out.shape), root=root, out=out)


def _scatter_back(ctx: Any, grad: Tensor) -> Any:
    whole = OPS.gather(grad, ctx.root, ctx.group)
    if resolve(ctx.group).rank != ctx.root:
        return grad.new_zeros(ctx.shape)
    return whole.view(ctx.shape)


define_filled(
    "broadcast(Tensor x, int root, str group)",
    _same,
    _broadcast,
    lambda ctx, grad: OPS.reduce(grad, "sum", ctx.root, ctx.group),
)
_define_writing(
    "broadcast_(Tensor(a!) x, int root, str group)", _broadcast, filled=True
)
define_filled(
    "reduce(Tensor x, str op, int root, str group)", _same, _reduce, _reduce_back
)
define_filled(
    "gather(Tensor x, int root, str group)",
    _gather_shape,
    _gather,
    lambda ctx, grad: OPS.scatter(grad, ctx.shape, ctx.root, ctx.group),
)
define_filled(
    "scatter(Tensor x, SymInt[] part, int root, str group)",
    lambda x, part, *_: list(part),
    _scatter,
    _scatter_back,
)
define_filled(
    "permute(Tensor x, int[] sources, int[] targets, str group)",
    _same,
    lambda comm, x, out, sources, targets: comm.permute(
        x, tuple(zip(sources, targets, strict=True)), out=out
    ),
    lambda ctx, grad: OPS.permute(grad, ctx.targets, ctx.sources, ctx.group),
)
