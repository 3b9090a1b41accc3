"""Operators of `torch.ops.stretto`, and the plain functions that stand before them."""

from stretto.torch.operators.doors import (
    all_gather,
    all_gather_v,
    all_reduce,
    all_reduce_,
    all_to_all,
    barrier,
    broadcast,
    broadcast_,
    gather,
    permute,
    reduce,
    reduce_scatter,
    reduce_scatter_v,
    scatter,
)
from stretto.torch.operators.library import named
from stretto.torch.operators.matmuls import all_gather_matmul, matmul_reduce_scatter
from stretto.torch.operators.norms import all_reduce_rmsnorm, all_reduce_rmsnorm_
from stretto.torch.operators.norms_fp8 import all_reduce_rmsnorm_fp8
from stretto.torch.operators.shards import matmul_all_reduce, partial_matmul

__all__ = [
    "all_gather",
    "all_gather_matmul",
    "all_gather_v",
    "all_reduce",
    "all_reduce_",
    "all_reduce_rmsnorm",
    "all_reduce_rmsnorm_",
    "all_reduce_rmsnorm_fp8",
    "all_to_all",
    "barrier",
    "broadcast",
    "broadcast_",
    "gather",
    "matmul_all_reduce",
    "matmul_reduce_scatter",
    "named",
    "partial_matmul",
    "permute",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_v",
    "scatter",
]
