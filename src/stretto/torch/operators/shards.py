"""Matmuls and sums over a fixed number of shards: equal bits on 1, 2, 4 or 8 ranks.

The k of `x @ w` is cut into shards, each a matmul of its own, rounded; these are added
as a tree (`stretto.shards`), by each rank what it holds, then by all. So what a model
computes does not depend on how many ranks it is cut over.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from stretto.errors import CallError
from stretto.runtime.calls import Communicator
from stretto.shards import add_pairs, check_shards
from stretto.torch.operators.collectives import define_filled, part_of
from stretto.torch.operators.library import communicator_of, text_of

OPS = torch.ops.stretto


def _all_reduce(comm: Communicator, x: Tensor, out: Tensor) -> None:
    comm.all_reduce(x, out=out, bits="pairs")


def _reduce_scatter(comm: Communicator, x: Tensor, out: Tensor) -> None:
    comm.reduce_scatter(x, out=out, bits="pairs")


define_filled(
    "all_reduce_pairs(Tensor x, str group)",
    lambda x, group: list(x.shape),
    _all_reduce,
    lambda ctx, grad: OPS.all_reduce_pairs(grad, ctx.group),
)
define_filled(
    "reduce_scatter_pairs(Tensor x, str group)",
    lambda x, group: part_of(x, communicator_of(group).num_ranks, "reduce_scatter"),
    _reduce_scatter,
    lambda ctx, grad: OPS.all_gather(grad, ctx.group),
)


def partial_matmul(
    x: Tensor, w: Tensor, *, shards: int = 8, group: Any = None
) -> Tensor:
    """Return this rank's sum of its shards of `x @ w`, for a sum in pairs over ranks.

    `x` is (rows, k / ranks) and `w` (k / ranks, columns). Each shard is multiplied from
    memory without gaps, so that it lies alike on any number of ranks: a `w` whose rows
    are not contiguous is copied in every call.
    """
    comm = communicator_of(group)
    many = check_shards(comm, "matmul", shards)
    inner = x.shape[-1]
    if x.dim() != 2 or w.dim() != 2 or w.shape[0] != inner or inner % many:
        raise CallError(
            f"rank {comm.rank}: x has shape {tuple(x.shape)}, w {tuple(w.shape)}; want "
            f"(rows, k) and (k, columns), and a k that {many} shards divide"
        )
    each = inner // many
    cuts = [slice(i * each, (i + 1) * each) for i in range(many)]
    return add_pairs([x[:, cut].contiguous() @ w[cut].contiguous() for cut in cuts])


def matmul_all_reduce(
    x: Tensor, w: Tensor, group: Any = None, *, shards: int = 8
) -> Tensor:
    """Return the sum of everybody's `x @ w`, with the same bits on any number of ranks.

    See `partial_matmul`; its gradient is as that of an all_reduce.
    """
    part = partial_matmul(x, w, shards=shards, group=group)
    found: Tensor = OPS.all_reduce_pairs(part, text_of(group))
    return found
