"""What torch.distributed passes, as calls of a communicator.

Every function takes a communicator and c10d's arguments, and returns when the tensors
hold what c10d promises. A call is first made as it is. What the communicator refuses
(strided on a GPU, conjugated, of a type that NumPy lacks) is copied, or moved as bytes,
and copied back. Nothing here knows of groups, threads or streams. Legend: n ranks.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from stretto.errors import CallError
from stretto.torch.tensors import block, divided, joined, read, rows, units, written

Tensor = Any
Op = Any
"""The name of an operator; or a factor, by which inputs are multiplied and summed."""


def _alike(parts: Sequence[Tensor], like: Tensor, verb: str) -> None:
    """Raise when tensors of one call differ in type or device."""
    for part in parts:
        if part.dtype != like.dtype or part.device != like.device:
            raise CallError(
                f"{verb}: a tensor of {part.dtype} on {part.device} beside one of "
                f"{like.dtype} on {like.device}; want one type and one device"
            )


def _scaled(x: Tensor, op: Op) -> tuple[Tensor, Op]:
    """Return inputs that were multiplied by their factor, and the operator for them."""
    if isinstance(op, str):
        return x, op
    return (x * op).to(x.dtype), "sum"


# Calls that combine.


def all_reduce(comm: Any, tensor: Tensor, op: Op) -> None:
    """Combine everybody's tensor, in place."""
    if isinstance(op, str):
        try:
            comm.all_reduce(tensor, op)
            return
        except CallError:
            pass  # copied, if that helps; else it is raised again
    with written(tensor, filled=True, moved=False) as x:
        if not isinstance(op, str):
            x.mul_(op)
        comm.all_reduce(x, "sum" if not isinstance(op, str) else op)


def reduce(comm: Any, tensor: Tensor, root: int, op: Op) -> None:
    """Combine everybody's tensor at the root, in place."""
    if isinstance(op, str):
        try:
            comm.reduce(tensor, op, root=root)
            return
        except CallError:
            pass
    x, op = _scaled(read(tensor, moved=False), op)
    if comm.rank != root:
        comm.reduce(x, op, root=root)
        return
    with written(tensor, filled=False, moved=False) as out:
        comm.reduce(x, op, root=root, out=out)


def reduce_scatter_single(comm: Any, out: Tensor, x: Tensor, op: Op) -> None:
    """Combine everybody's `x`; rank r gets the r-th part, in `out`."""
    if isinstance(op, str):
        try:
            comm.reduce_scatter(x, op, out=out)
            return
        except CallError:
            pass
    _alike((out,), x, "reduce_scatter")
    given, op = _scaled(rows(read(x, moved=False), comm.num_ranks), op)
    with written(out, filled=False, moved=False) as target:
        comm.reduce_scatter(given, op, out=target)


def reduce_scatter(comm: Any, out: Tensor, parts: Sequence[Tensor], op: Op) -> None:
    """Combine everybody's parts; rank r gets the r-th, in `out`."""
    _check_length(parts, comm.num_ranks, "reduce_scatter")
    _alike(parts, out, "reduce_scatter")
    counts = tuple(part.numel() for part in parts)
    x = block(parts)
    if x is None:
        x = torch.cat([read(p, moved=False).reshape(-1) for p in parts])
    x, op = _scaled(x, op)
    with written(out, filled=False, moved=False) as target:
        if len(set(counts)) == 1:
            comm.reduce_scatter(x, op, out=target)
        else:
            comm.reduce_scatter_v(x, counts, op, out=target)


# Calls that move.


def broadcast(comm: Any, tensor: Tensor, root: int) -> None:
    """Give everybody the root's tensor."""
    try:
        comm.broadcast(tensor, root=root)
        return
    except CallError:
        pass
    with written(tensor, filled=comm.rank == root) as x:
        comm.broadcast(x, root=root)


def all_gather_single(comm: Any, out: Tensor, x: Tensor) -> None:
    """Give everybody everybody's `x`, one after another, in `out`."""
    try:
        comm.all_gather(x, out=out)
        return
    except CallError:
        pass
    _alike((out,), x, "all_gather")
    with written(out, filled=False) as target:
        comm.all_gather(read(x), out=target)


def all_gather(comm: Any, outs: Sequence[Tensor], x: Tensor) -> None:
    """Give everybody everybody's `x`, that of rank r in `outs[r]`."""
    _check_length(outs, comm.num_ranks, "all_gather")
    _alike(outs, x, "all_gather")
    counts = [out.numel() for out in outs]
    if counts[comm.rank] != x.numel():
        raise CallError(
            f"all_gather: rank {comm.rank} gives {x.numel()} elements and has place "
            f"for {counts[comm.rank]} of its own; want as many"
        )
    with divided(outs) as target:
        if len(set(counts)) == 1:
            comm.all_gather(read(x), out=target)
            return
        given = read(x)
        times = target.numel() // sum(counts)
        comm.all_gather_v(given, tuple(c * times for c in counts), out=target)


def gather(comm: Any, outs: Sequence[Tensor], x: Tensor, root: int) -> None:
    """Give the root everybody's `x`, that of rank r in `outs[r]`.

    The others cannot know of its list: where that is wrong it takes part, then raises.
    """
    if comm.rank != root:
        comm.gather(read(x), root=root)
        return
    try:
        _check_length(outs, comm.num_ranks, "gather")
        _alike(outs, x, "gather")
        _check_equal(outs, x.numel(), "gather")
    except CallError:
        comm.gather(read(x), root=root)
        raise
    with divided(outs) as target:
        comm.gather(read(x), root=root, out=target)


def scatter(comm: Any, out: Tensor, parts: Sequence[Tensor], root: int) -> None:
    """Give rank r the root's `parts[r]`, in `out`."""
    x = None
    if comm.rank == root:
        _check_length(parts, comm.num_ranks, "scatter")
        _alike(parts, out, "scatter")
        _check_equal(parts, out.numel(), "scatter")
        x = rows(joined(parts), comm.num_ranks)
    with written(out, filled=False) as target:
        comm.scatter(x, root=root, out=target)


# Calls that give every rank something of its own.


def all_to_all_single(
    comm: Any,
    out: Tensor,
    x: Tensor,
    out_splits: Sequence[int],
    in_splits: Sequence[int],
) -> None:
    """Give rank r its rows of `x`; what comes is in `out`, in rank order.

    Without splits, rows are divided evenly.
    """
    n = comm.num_ranks
    if not len(out_splits) and not len(in_splits):
        _even_all_to_all(comm, out, x)
        return
    _alike((out,), x, "all_to_all_single")
    gives = _elements(x, in_splits, n, "input")
    takes = _elements(out, out_splits, n, "output")
    with written(out, filled=False) as target:
        _all_to_all_v(comm, target, read(x), gives, takes, like=x)


def _even_all_to_all(comm: Any, out: Tensor, x: Tensor) -> None:
    n = comm.num_ranks
    if x.dim() and x.shape[0] % n == 0:
        try:
            comm.all_to_all(x, out=out)
            return
        except CallError:
            pass
    _alike((out,), x, "all_to_all_single")
    _elements(x, (), n, "input")
    _elements(out, (), n, "output")
    with written(out, filled=False) as target:
        comm.all_to_all(rows(read(x), n), out=target)


def all_to_all(comm: Any, outs: Sequence[Tensor], parts: Sequence[Tensor]) -> None:
    """Give rank r `parts[r]`; what rank r gives is in `outs[r]`."""
    for tensors in (outs, parts):
        _check_length(tensors, comm.num_ranks, "all_to_all")
        _alike(tensors, parts[0], "all_to_all")
    gives, takes = [p.numel() for p in parts], [o.numel() for o in outs]
    with divided(outs) as target:
        _all_to_all_v(comm, target, joined(parts), gives, takes, like=parts[0])


def _all_to_all_v(
    comm: Any,
    out: Tensor,
    x: Tensor,
    gives: Sequence[int],
    takes: Sequence[int],
    *,
    like: Tensor,
) -> None:
    """Run with counts that every rank knows of itself: they are exchanged first.

    All ranks see what all give and take, so that all refuse what does not fit.
    """
    n, times = comm.num_ranks, units(like)
    mine = np.array([*gives, *takes], np.int64) * times
    answered_here = getattr(comm, "counts_of_all", None)  # nobody else takes part
    table = comm.all_gather(mine) if answered_here is None else answered_here(mine)
    given, taken = table[:, :n], table[:, n:].T
    if not np.array_equal(given, taken):
        a, b = np.argwhere(given != taken)[0]
        raise CallError(
            f"all_to_all: rank {a} gives rank {b} {given[a, b] // times} elements, and "
            f"that expects {taken[a, b] // times}; want splits that fit on all ranks"
        )
    flat = x.reshape(-1)
    if n == 1:
        out.reshape(-1).copy_(flat)
    else:
        comm.all_to_all_v(flat, tuple(given.ravel().tolist()), out=out)


def _elements(tensor: Tensor, splits: Sequence[int], n: int, what: str) -> list[int]:
    """Return how many elements each rank's rows have."""
    rows = tensor.shape[0] if tensor.dim() else 0
    if not len(splits):
        if rows % n or not tensor.dim():
            raise CallError(
                f"all_to_all_single: {what} of shape {tuple(tensor.shape)} is not "
                f"divisible by {n} ranks along its first axis; pass {what}_split_sizes"
            )
        splits = [rows // n] * n
    if len(splits) != n or sum(splits) != rows or min(splits) < 0:
        raise CallError(
            f"all_to_all_single: {what}_split_sizes={list(splits)} for {rows} rows and "
            f"{n} ranks; want {n} numbers whose sum is {rows}"
        )
    each = tensor[0].numel() if rows else 0
    return [int(split) * each for split in splits]


# Several tensors at once.


def _each(call: Callable[..., None], comm: Any, *columns: Sequence[Any]) -> None:
    for row in zip(*columns, strict=True):
        call(comm, *row)


def all_reduce_each(comm: Any, tensors: Sequence[Tensor], op: Op) -> None:
    """Combine everybody's tensors, in place, one by one."""
    _each(all_reduce, comm, tensors, [op] * len(tensors))


def all_gather_each(
    comm: Any, outs: Sequence[Tensor], inputs: Sequence[Tensor]
) -> None:
    """Gather every input in the output of its place."""
    _each(all_gather_single, comm, outs, inputs)


def reduce_scatter_each(
    comm: Any, outs: Sequence[Tensor], inputs: Sequence[Tensor], op: Op
) -> None:
    """Combine and divide every input in the output of its place."""
    _each(reduce_scatter_single, comm, outs, inputs, itertools.repeat(op, len(outs)))  # type: ignore[arg-type]


def _check_length(parts: Sequence[Tensor], n: int, verb: str) -> None:
    if len(parts) != n:
        raise CallError(f"{verb}: {len(parts)} tensors; want {n}, one for every rank")


def _check_equal(parts: Sequence[Tensor], count: int, verb: str) -> None:
    odd = [(r, p.numel()) for r, p in enumerate(parts) if p.numel() != count]
    if odd:
        raise CallError(
            f"{verb}: the tensor of rank {odd[0][0]} has {odd[0][1]} elements, here "
            f"are {count}; want as many for every rank, or all_to_all"
        )
