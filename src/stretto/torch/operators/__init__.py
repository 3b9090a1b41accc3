"""Operators of `torch.ops.stretto`, and the plain functions that stand before them."""

from stretto.torch.operators import collectives as _collectives
from stretto.torch.operators import rooted as _rooted
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

__all__ = [
    "all_gather",
    "all_gather_v",
    "all_reduce",
    "all_reduce_",
    "all_to_all",
    "barrier",
    "broadcast",
    "broadcast_",
    "gather",
    "named",
    "permute",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_v",
    "scatter",
]
