"""What torch.distributed passes, as calls of a communicator.

Every function takes a communicator and c10d's arguments, and returns when the tensors
hold what c10d promises. A call is first made as it is. What the communicator refuses
(strided on a GPU, conjugated, of a type that NumPy lacks) is copied, or moved as bytes,
and copied back. Nothing here knows of groups, threads or streams. Legend: n ranks.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from stretto.collectives import DTYPES
from stretto.errors import CallError

__all__ = [
    "all_gather",
    "all_gather_each",
    "all_gather_single",
    "all_reduce",
    "all_reduce_each",
    "all_to_all",
    "all_to_all_single",
    "broadcast",
    "gather",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_each",
    "reduce_scatter_single",
    "scatter",
]

Tensor = Any
Op = Any
"""The name of an operator; or a factor, by which inputs are multiplied and summed."""

_KNOWN = frozenset(getattr(torch, name) for name in DTYPES if hasattr(torch, name))


# Tensors as a communicator takes them.


def _is_plain(tensor: Tensor) -> bool:
    return bool(tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg())


def _bits(tensor: Tensor) -> Tensor:
    """Return a contiguous tensor of a type that ours do not know as its bytes."""
    if tensor.dtype in _KNOWN:
        return tensor
    return tensor.reshape(-1).view(torch.uint8)


def _read(tensor: Tensor, *, moved: bool = True) -> Tensor:
    """Return a tensor whose memory holds these elements, in order."""
    plain = tensor.detach()
    if not _is_plain(plain):
        plain = plain.resolve_conj().resolve_neg().contiguous()
    return _bits(plain) if moved else plain


@contextmanager
def _written(tensor: Tensor, *, filled: bool, moved: bool = True) -> Iterator[Tensor]:
    """Give what a call may write to; `tensor` has it afterwards.

    `filled`: the call reads it, too.
    """
    mine = tensor.detach()
    if _is_plain(mine):
        yield _bits(mine) if moved else mine
        return
    copy = torch.empty(mine.shape, dtype=mine.dtype, device=mine.device)
    if filled:
        copy.copy_(mine)
    yield _bits(copy) if moved else copy
    mine.copy_(copy)


def _rows(tensor: Tensor, n: int) -> Tensor:
    """Return a tensor whose first axis n divides, when its size does."""
    if tensor.dim() and tensor.shape[0] % n == 0:
        return tensor
    return tensor.reshape(-1)


def _block(parts: Sequence[Tensor]) -> Tensor | None:
    """Return the memory of parts that follow one another, as one flat tensor."""
    first = parts[0]
    at, size, memory = first.data_ptr(), first.element_size(), first.untyped_storage()
    total = 0
    for part in parts:
        if part.dtype != first.dtype or not _is_plain(part):
            return None
        if part.numel() and part.data_ptr() != at + total * size:
            return None
        if part.untyped_storage().data_ptr() != memory.data_ptr():
            return None
        total += part.numel()
    return first.detach().as_strided((total,), (1,))


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """Return the elements of all parts, one after another."""
    whole = _block(parts) if len(parts) else None
    if whole is not None:
        return _bits(whole)
    return torch.cat([_read(part).reshape(-1) for part in parts])


@contextmanager
def _divided(parts: Sequence[Tensor]) -> Iterator[Tensor]:
    """Give a flat tensor; what is written there, the parts have afterwards."""
    whole = _block(parts)
    if whole is not None:
        yield _bits(whole)
        return
    mine = [part.detach() for part in parts]
    counts = [part.numel() for part in mine]
    whole = torch.empty(sum(counts), dtype=mine[0].dtype, device=mine[0].device)
    yield _bits(whole)
    for part, got in zip(mine, whole.split(counts), strict=True):
        part.copy_(got.view(part.shape))


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
    with _written(tensor, filled=True, moved=False) as x:
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
    x, op = _scaled(_read(tensor, moved=False), op)
    if comm.rank != root:
        comm.reduce(x, op, root=root)
        return
    with _written(tensor, filled=False, moved=False) as out:
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
    given, op = _scaled(_rows(_read(x, moved=False), comm.num_ranks), op)
    with _written(out, filled=False, moved=False) as target:
        comm.reduce_scatter(given, op, out=target)


def reduce_scatter(comm: Any, out: Tensor, parts: Sequence[Tensor], op: Op) -> None:
    """Combine everybody's parts; rank r gets the r-th, in `out`."""
    _check_length(parts, comm.num_ranks, "reduce_scatter")
    _alike(parts, out, "reduce_scatter")
    counts = tuple(part.numel() for part in parts)
    x = _block(parts)
    if x is None:
        x = torch.cat([_read(p, moved=False).reshape(-1) for p in parts])
    x, op = _scaled(x, op)
    with _written(out, filled=False, moved=False) as target:
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
    with _written(tensor, filled=comm.rank == root) as x:
        comm.broadcast(x, root=root)


def all_gather_single(comm: Any, out: Tensor, x: Tensor) -> None:
    """Give everybody everybody's `x`, one after another, in `out`."""
    try:
        comm.all_gather(x, out=out)
        return
    except CallError:
        pass
    _alike((out,), x, "all_gather")
    with _written(out, filled=False) as target:
        comm.all_gather(_read(x), out=target)


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
    with _divided(outs) as target:
        if len(set(counts)) == 1:
            comm.all_gather(_read(x), out=target)
            return
        given = _read(x)
        times = target.numel() // sum(counts)
        comm.all_gather_v(given, tuple(c * times for c in counts), out=target)


def gather(comm: Any, outs: Sequence[Tensor], x: Tensor, root: int) -> None:
    """Give the root everybody's `x`, that of rank r in `outs[r]`."""
    if comm.rank != root:
        comm.gather(_read(x), root=root)
        return
    _check_length(outs, comm.num_ranks, "gather")
    _alike(outs, x, "gather")
    _check_equal(outs, x.numel(), "gather")
    with _divided(outs) as target:
        comm.gather(_read(x), root=root, out=target)


def scatter(comm: Any, out: Tensor, parts: Sequence[Tensor], root: int) -> None:
    """Give rank r the root's `parts[r]`, in `out`."""
    x = None
    if comm.rank == root:
        _check_length(parts, comm.num_ranks, "scatter")
        _alike(parts, out, "scatter")
        _check_equal(parts, out.numel(), "scatter")
        x = _rows(_joined(parts), comm.num_ranks)
    with _written(out, filled=False) as target:
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
    with _written(out, filled=False) as target:
        _all_to_all_v(comm, target, _read(x), gives, takes, like=x)


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
    with _written(out, filled=False) as target:
        comm.all_to_all(_rows(_read(x), n), out=target)


def all_to_all(comm: Any, outs: Sequence[Tensor], parts: Sequence[Tensor]) -> None:
    """Give rank r `parts[r]`; what rank r gives is in `outs[r]`."""
    for tensors in (outs, parts):
        _check_length(tensors, comm.num_ranks, "all_to_all")
        _alike(tensors, parts[0], "all_to_all")
    gives, takes = [p.numel() for p in parts], [o.numel() for o in outs]
    with _divided(outs) as target:
        _all_to_all_v(comm, target, _joined(parts), gives, takes, like=parts[0])


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
    n, times = comm.num_ranks, 1 if like.dtype in _KNOWN else like.element_size()
    mine = np.array([*gives, *takes], np.int64) * times
    table = comm.all_gather(mine)
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
