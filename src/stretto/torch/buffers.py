"""The buffers of DDP and FSDP2, in memory that peers reach: one call for a model."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from stretto.errors import CallError
from stretto.torch.base import GroupBase
from stretto.torch.fallback import say_once
from stretto.torch.memory import deregister, register
from stretto.torch.untraced import untraced

_WHOLE = "bulk zero_copy threads=512 tile_bytes=1073741824 depth=8 blocks=16"
FEW_SMS = {
    "all_gather": f"all_gather/one_shot push {_WHOLE}",
    "reduce_scatter": f"reduce_scatter/one_shot pull {_WHOLE}",
}
"""What leaves SMs to the matmuls beside it: 16 blocks, where NCCL has 24."""
FROM_BYTES = 32 << 20
"""Bytes of everybody's parts from which that is so; smaller calls are soon over."""
ENGINES = {
    **FEW_SMS,
    "all_gather": "all_gather/one_shot push engine zero_copy blocks=2",
}
"""What leaves all SMs to them while parameters are gathered."""
ENGINES_FROM_BYTES = 256 << 20
"""Bytes from which that is so. A gather by engines is two kernels and a copy for each
peer: where the host is the limit, a step with smaller ones takes 5 % longer
(torch_fsdp_h200x4_202611.md), and one with larger ones is 1 to 2 % shorter."""


@untraced
def place_buffers(model: Any, pool: Any = None) -> int:
    """Let a model's collectives be zero-copy on GPUs; return how many parts have it.

    Of DistributedDataParallel every bucket is registered when it is first reduced.
    Modules that `fully_shard` made take their buffers from `pool`, of
    `stretto.torch.pool`, which is to hold the largest two modules and their gradients;
    their large calls leave most SMs to the matmuls beside them.
    On the CPU, whose memory cannot be registered afterwards, calls stay as they are.
    """
    if isinstance(model, torch.nn.parallel.DistributedDataParallel):
        buckets = _Buckets(model.process_group)
        model.register_comm_hook(None, lambda state, bucket: buckets.reduce(bucket))
        return 1
    modules = model.modules() if isinstance(model, torch.nn.Module) else ()
    found = [m for m in modules if hasattr(m, "set_custom_all_gather")]
    if not found:
        raise CallError(
            f"place_buffers: a {type(model).__name__} without DistributedDataParallel "
            f"or fully_shard; want a model that one of them has wrapped"
        )
    if pool is None:
        raise CallError("place_buffers: modules of fully_shard want a pool")
    for module in found:
        module.set_custom_all_gather(_AllGather(pool))
        module.set_custom_reduce_scatter(_ReduceScatter(pool))
    return len(found)


@untraced
class _Buckets:
    """Registers DDP's buckets; DDP makes them anew after the first step."""

    def __init__(self, group: Any) -> None:
        self._group = group
        self._known: dict[int, Any] = {}

    def reduce(self, bucket: Any) -> Any:
        """Average a bucket, in DDP's communication hook."""
        buffer = bucket.buffer()
        if buffer.is_cuda:
            self._register(bucket.index(), buffer)
        op = dist.ReduceOp.AVG
        work = dist.all_reduce(buffer, op, group=self._group, async_op=True)
        return work.get_future().then(lambda future: future.value()[0])

    def _register(self, index: int, buffer: Any) -> None:
        before = self._known.get(index)
        if before is not None and before.data_ptr() == buffer.data_ptr():
            return
        if before is not None:
            deregister(before, group=self._group)
        self._known[index] = buffer
        if not register(buffer, group=self._group):
            say_once("place_buffers", "buckets of DDP stay staged: memory of this kind "
                     "cannot be shared (expandable segments?)")  # fmt: skip


class _Placed:
    """Allocates what FSDP2 sends and receives from a pool."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool

    def allocate(self, size: Any, *, dtype: Any, device: Any) -> Any:
        """Return a buffer."""
        if torch.device(device).type != "cuda":
            return torch.empty(*size, dtype=dtype, device=device)
        with torch.cuda.use_mem_pool(self._pool, device):
            return torch.empty(*size, dtype=dtype, device=device)


def _on_few_sms(call: Callable[[], Any], whole: Any, group: Any) -> Any:
    """Make a call that others run beside, on few SMs when it is large."""
    large = whole.is_cuda and whole.nbytes >= FROM_BYTES
    if not large or not isinstance(group, GroupBase):
        return call()
    try:
        with group.pinned(ENGINES if whole.nbytes >= ENGINES_FROM_BYTES else FEW_SMS):
            return call()
    except CallError:  # memory that peers do not reach
        return call()


@untraced
class _AllGather(_Placed):
    def __call__(
        self, output_tensor: Any, input_tensor: Any, group: Any, async_op: bool = False
    ) -> Any:
        """Gather parameters."""
        call = functools.partial(
            _newest("all_gather_single", "all_gather_into_tensor"),
            *(output_tensor, input_tensor),
            group=group,
            async_op=async_op,
        )
        return _on_few_sms(call, output_tensor, group)


@untraced
class _ReduceScatter(_Placed):
    def __call__(
        self,
        output_tensor: Any,
        input_tensor: Any,
        group: Any,
        op: Any,
        async_op: bool = False,
    ) -> Any:
        """Combine gradients."""
        call = functools.partial(
            _newest("reduce_scatter_single", "reduce_scatter_tensor"),
            *(output_tensor, input_tensor),
            op=op,
            group=group,
            async_op=async_op,
        )
        return _on_few_sms(call, input_tensor, group)


def _newest(name: str, older: str) -> Any:
    return getattr(dist, name, None) or getattr(dist, older)
