"""Matmuls beside their collectives: parts are moved while others are multiplied.

    all_gather_matmul      (everybody's rows of x) @ w: a part is used when it has come
    matmul_reduce_scatter  this rank's rows of the sum of x @ w: a part leaves when made

On GPUs copy engines move the parts while others are multiplied (overlapping.py): no SM
is taken from the matmul. On CPUs parts are moved one by one, by started calls.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from stretto.errors import CallError
from stretto.runtime.calls import Communicator
from stretto.torch.operators.collectives import gathered, part_of, plain
from stretto.torch.operators.library import define, in_graph, resolve, text_of
from stretto.torch.operators.overlapping import (
    gather_then_multiply,
    multiply_then_scatter,
)
from stretto.torch.operators.shards import partial_matmul

OPS = torch.ops.stretto
OVERLAP_FROM: int | None = None
"""Bytes of a part from which others are moved meanwhile; None: on GPUs as the profile
says, on CPUs from 8 MB on. Smaller ones are moved before or after, with fewer calls."""
_ON_CPUS_FROM = 8 << 20


def _shift(n: int, by: int) -> tuple[tuple[int, int], ...]:
    return tuple((q, (q + by) % n) for q in range(n))


def _together(comm: Communicator, x: Tensor, nbytes: int, *, sums: bool) -> bool:
    """Return whether parts of so many bytes are too small to be moved one by one."""
    if comm.num_ranks == 1 or not nbytes:
        return True
    least = OVERLAP_FROM
    if least is None:
        least = _ON_CPUS_FROM
        if x.is_cuda:
            rows = comm.measured()
            least = rows.scattered_beside_from if sums else rows.beside_from
    return nbytes < least


def _check(x: Tensor, w: Tensor, verb: str) -> None:
    if x.dim() != 2 or w.dim() != 2 or x.shape[1] != w.shape[0] or x.dtype != w.dtype:
        raise CallError(
            f"{verb}: x has shape {tuple(x.shape)} of {x.dtype}, w {tuple(w.shape)} of "
            f"{w.dtype}; want (rows, k) and (k, columns) of one type"
        )


# all_gather, then matmul


def _all_gather_matmul(
    x: Tensor, w: Tensor, keep: bool, group: str
) -> tuple[Tensor, Tensor]:
    _check(x, w, "all_gather_matmul")
    comm, x = resolve(group), plain(x)
    if _together(comm, x, x.nbytes, sums=False):
        whole = x.new_empty(gathered(x, comm.num_ranks))
        comm.all_gather(x, out=whole)
        return whole @ w, whole if keep else x.new_empty(0)
    shape = gathered(x, comm.num_ranks)
    y = x.new_empty(shape[0], w.shape[1])
    whole = x.new_empty(shape if keep else 0)
    run = gather_then_multiply if x.is_cuda else _gather_on_cpu
    run(comm, x, w, y, whole if keep else None)
    return y, whole


def _use(
    comm: Communicator, part: Tensor, q: int, w: Tensor, y: Tensor, whole: Any
) -> None:
    """Multiply the part of rank q."""
    rows = slice(q * part.shape[0], (q + 1) * part.shape[0])
    torch.mm(part, w, out=y[rows])
    if whole is not None:
        whole[rows].copy_(part)


def _gather_on_cpu(
    comm: Communicator, x: Tensor, w: Tensor, y: Tensor, whole: Tensor | None
) -> None:
    n, me = comm.num_ranks, comm.rank
    parts = [x.new_empty(x.shape) for _ in range(1, n)]
    works = [
        comm.permute_async(x, _shift(n, -s), out=parts[s - 1]) for s in range(1, n)
    ]
    _use(comm, x, me, w, y, whole)
    for s, work in enumerate(works, 1):
        work.wait()
        _use(comm, parts[s - 1], (me + s) % n, w, y, whole)


def _all_gather_matmul_fake(
    x: Tensor, w: Tensor, keep: bool, group: str
) -> tuple[Tensor, Tensor]:
    _check(x, w, "all_gather_matmul")
    shape = gathered(x, resolve(group).num_ranks)
    return x.new_empty(shape[0], w.shape[1]), x.new_empty(shape if keep else [0])


def _keep_both(ctx: Any, inputs: Any, output: Any) -> None:
    x, w = inputs[:2]
    ctx.group = inputs[-1]
    ctx.save_for_backward(x, w)
    ctx.set_materialize_grads(False)


def _all_gather_matmul_back(ctx: Any, grad: Any, grad_whole: Any) -> Any:
    x, w = ctx.saved_tensors
    by_x = by_w = None
    if grad is not None:
        by_x = OPS.matmul_reduce_scatter(grad, w.t(), ctx.group)
        by_w = OPS.all_gather(x, ctx.group).t() @ grad
    if grad_whole is not None and grad_whole.numel():
        more = OPS.reduce_scatter(grad_whole, "sum", ctx.group)
        by_x = more if by_x is None else by_x + more
    return by_x, by_w, None, None


define(
    "all_gather_matmul(Tensor x, Tensor w, bool keep, str group) -> (Tensor, Tensor)",
    _all_gather_matmul,
    fake=_all_gather_matmul_fake,
    backward=_all_gather_matmul_back,
    context=_keep_both,
)


# matmul, then reduce_scatter


def _matmul_reduce_scatter(x: Tensor, w: Tensor, group: str) -> Tensor:
    _check(x, w, "matmul_reduce_scatter")
    comm, x = resolve(group), plain(x)
    shape = [*part_of(x, comm.num_ranks, "matmul_reduce_scatter")[:1], w.shape[1]]
    nbytes = x.element_size() * shape[0] * shape[1]
    if _together(comm, x, nbytes, sums=True):
        out = x.new_empty(shape)
        comm.reduce_scatter(x @ w, out=out)
        return out
    run = multiply_then_scatter if x.is_cuda else _scatter_on_cpu
    return run(comm, x.view(comm.num_ranks, shape[0], -1), w, shape)


def _scatter_on_cpu(
    comm: Communicator, x: Tensor, w: Tensor, shape: list[int]
) -> Tensor:
    n, me = comm.num_ranks, comm.rank
    parts = x.new_empty([n, *shape])
    works, sent = [], []
    for s in range(1, n):
        sent.append(x[(me + s) % n] @ w)
        works.append(
            comm.permute_async(sent[-1], _shift(n, s), out=parts[(me - s) % n])
        )
    torch.mm(x[me], w, out=parts[me])
    for work in works:
        work.wait()
    return _summed(list(parts), x.dtype)


def _summed(parts: list[Tensor], dtype: torch.dtype) -> Tensor:
    """Return the sum in rank order, rounded once where that is more than one step."""
    if len(parts) == 2:
        return parts[0] + parts[1]
    wide = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
    total = parts[0].to(wide)
    for part in parts[1:]:
        total = total + part
    return total.to(dtype)


def _matmul_reduce_scatter_fake(x: Tensor, w: Tensor, group: str) -> Tensor:
    _check(x, w, "matmul_reduce_scatter")
    rows = part_of(x, resolve(group).num_ranks, "matmul_reduce_scatter")[0]
    return x.new_empty(rows, w.shape[1])


def _matmul_reduce_scatter_back(ctx: Any, grad: Any) -> Any:
    if grad is None:
        return None, None, None
    x, w = ctx.saved_tensors
    by_x, whole = OPS.all_gather_matmul(grad, w.t(), True, ctx.group)
    return by_x, x.t() @ whole, None


define(
    "matmul_reduce_scatter(Tensor x, Tensor w, str group) -> Tensor",
    _matmul_reduce_scatter,
    fake=_matmul_reduce_scatter_fake,
    backward=_matmul_reduce_scatter_back,
    context=_keep_both,
)


# The plain functions.


def all_gather_matmul(x: Tensor, w: Tensor, group: Any = None) -> Tensor:
    """Return everybody's rows of `x`, in rank order, times `w`."""
    if in_graph(x, w):
        y: Tensor = OPS.all_gather_matmul(x, w, False, text_of(group))[0]
        return y
    return _all_gather_matmul(x, w, False, text_of(group))[0]


def matmul_reduce_scatter(
    x: Tensor, w: Tensor, group: Any = None, *, shards: int = 0
) -> Tensor:
    """Return this rank's part of the rows of the sum of everybody's `x @ w`.

    With `shards=8` its bits are the same on 1, 2, 4 and 8 ranks; see `partial_matmul`.
    """
    if shards:
        part = partial_matmul(x, w, shards=shards, group=group)
        found: Tensor = OPS.reduce_scatter_pairs(part, text_of(group))
        return found
    if in_graph(x, w):
        y: Tensor = OPS.matmul_reduce_scatter(x, w, text_of(group))
        return y
    return _matmul_reduce_scatter(x, w, text_of(group))
