"""Groups of `ray.util.collective`: each is a communicator, met by Ray's own store."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import ray
from ray.experimental import internal_kv
from ray.util.collective.collective_group.base_collective_group import BaseGroup
from ray.util.collective.types import (
    AllGatherOptions,
    AllReduceOptions,
    BarrierOptions,
    BroadcastOptions,
    ReduceOp,
    ReduceOptions,
    ReduceScatterOptions,
)

from stretto.errors import CallError, RendezvousError
from stretto.runtime.calls import connect_on

__all__ = ["RayGroup"]

_DEADLINE_S = 60.0
_PAUSE_S = 0.01
_NAMES = {
    ReduceOp.SUM: "sum", ReduceOp.PRODUCT: "prod", ReduceOp.MIN: "min",
    ReduceOp.MAX: "max",
}  # fmt: skip


class RayStore:
    """Texts that all ranks of a group see, until one of them clears them."""

    def __init__(self, name: str, deadline_s: float) -> None:
        """Groups of one name that follow one another do not see each other's."""
        self._prefix = f"stretto/{name}/{_incarnation(name)}/"
        self._until = time.monotonic() + deadline_s

    def set(self, key: str, value: str) -> None:
        """Set a text."""
        internal_kv._internal_kv_put(self._prefix + key, value, overwrite=True)

    def get(self, key: str) -> bytes:
        """Return a text, once there is one."""
        while (said := internal_kv._internal_kv_get(self._prefix + key)) is None:
            if time.monotonic() > self._until:
                raise RendezvousError(
                    f"{self._prefix}{key} did not come: not all ranks of the group "
                    "have called; every actor of it makes the same calls"
                )
            time.sleep(_PAUSE_S)
        return bytes(said)

    def clear(self) -> None:
        """Remove all texts."""
        internal_kv._internal_kv_del(self._prefix, del_by_prefix=True)


def _incarnation(name: str) -> str:
    """Return what sets a group apart from others that had its name, if Ray knows it."""
    with suppress(ValueError):  # it was declared by the driver, for these actors
        return str(ray.get_actor(f"info_{name}")._actor_id.hex())
    return "alone"


class RayGroup(BaseGroup):  # type: ignore[misc]
    """A group of actors, as Ray calls it.

    Arrays are NumPy's, CuPy's or PyTorch's, on CPUs or GPUs. Results come in place.
    """

    def __init__(self, world_size: int, rank: int, group_name: str) -> None:
        """Meet the others: all of them come, or it is said who did not."""
        super().__init__(world_size, rank, group_name)
        store = RayStore(group_name, _DEADLINE_S)
        self._comm = connect_on(store, rank, world_size, deadline_s=_DEADLINE_S)
        if rank == 0:  # all have read it: they are here
            store.clear()
        self._comm.barrier()  # before another of this name begins

    @classmethod
    def backend(cls) -> str:
        """Return the name by which Ray knows it."""
        return "STRETTO"

    @classmethod
    def check_backend_availability(cls) -> bool:
        """Return whether it works here: it does, or importing it has said why not."""
        return True

    def destroy_group(self) -> None:
        """End it."""
        self._comm.close()

    def allreduce(self, tensor: Any, allreduce_options: Any = AllReduceOptions) -> None:
        """Combine everybody's tensor, in place."""
        with _Whole(_one(tensor)) as x:
            self._comm.all_reduce(x, _NAMES[allreduce_options.reduceOp])

    def barrier(self, barrier_options: Any = BarrierOptions) -> None:
        """Return when all ranks have come."""
        self._comm.barrier()

    def reduce(self, tensor: Any, reduce_options: Any = ReduceOptions) -> None:
        """Combine everybody's tensor in the root's."""
        x, root = _one(tensor), reduce_options.root_rank
        with _Whole(x, writes=self.rank == root) as whole:
            out = whole if self.rank == root else None
            name = _NAMES[reduce_options.reduceOp]
            self._comm.reduce(whole, name, root=root, out=out)

    def broadcast(self, tensor: Any, broadcast_options: Any = BroadcastOptions) -> None:
        """Give everybody the root's tensor."""
        with _Whole(_one(tensor)) as x:
            self._comm.broadcast(x, root=broadcast_options.root_rank)

    def allgather(
        self, tensor_list: Any, tensor: Any, allgather_options: Any = AllGatherOptions
    ) -> None:
        """Give everybody everybody's tensor, each into its own."""
        outs, x = _one(tensor_list), _one(tensor)
        self._check(outs, x)
        with _Whole(x, writes=False) as whole:
            every = self._comm.all_gather(whole)
        for out, one in zip(outs, every, strict=True):
            _copy(out, one)

    def reducescatter(
        self, tensor: Any, tensor_list: Any,
        reducescatter_options: Any = ReduceScatterOptions,
    ) -> None:  # fmt: skip
        """Combine everybody's lists, and give each rank the one of its place."""
        out, parts = _one(tensor), _one(tensor_list)
        self._check(parts, out)
        name = _NAMES[reducescatter_options.reduceOp]
        _copy(out, self._comm.reduce_scatter(_stacked(parts), name).reshape(out.shape))

    def send(self, tensor: Any, send_options: Any) -> None:
        """Give a rank a tensor that it asks for."""
        with _Whole(_one(tensor), writes=False) as x:
            self._comm.send(x, send_options.dst_rank)

    def recv(self, tensor: Any, recv_options: Any) -> None:
        """Take a tensor that a rank sends."""
        with _Whole(_one(tensor)) as x:
            self._comm.recv(x, recv_options.src_rank)

    def _check(self, parts: Sequence[Any], whole: Any) -> None:
        odd = [i for i, part in enumerate(parts) if part.shape != whole.shape]
        if odd or len(parts) != self.world_size:
            said = f"{len(parts)} tensors"
            if odd:
                said += f", of which {odd[0]} has shape {tuple(parts[odd[0]].shape)}"
            raise CallError(
                f"group {self.group_name}: {said}; want one a rank, {self.world_size}, "
                f"each of shape {tuple(whole.shape)}"
            )


def _one(given: Any) -> Any:
    """Return what Ray wraps in a list: that of the one GPU that an actor has."""
    if len(given) != 1:
        raise CallError(f"{len(given)} tensors of one actor; want one: it has one GPU")
    return given[0]


class _Whole:
    """An array without gaps, in place of one that may have some."""

    def __init__(self, x: Any, *, writes: bool = True) -> None:
        self._x = x.detach() if hasattr(x, "detach") else x  # no gradient is taken
        self._writes = writes
        self._whole = self._x if _is_whole(x) else _stacked([x])[0]

    def __enter__(self) -> Any:
        return self._whole

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None and self._writes and self._whole is not self._x:
            _copy(self._x, self._whole)


def _is_whole(x: Any) -> bool:
    if hasattr(x, "is_contiguous"):
        return bool(x.is_contiguous())
    return bool(x.flags.c_contiguous)


def _stacked(parts: Sequence[Any]) -> Any:
    """Return arrays as one, of their own kind."""
    first = parts[0]
    if hasattr(first, "is_contiguous"):
        import torch

        return torch.stack([one.detach() for one in parts])
    if isinstance(first, np.ndarray):
        return np.stack(parts)
    return type(first).__array_function__(first, np.stack, (type(first),), (parts,), {})


def _copy(to: Any, x: Any) -> None:
    if hasattr(to, "copy_"):
        to.detach().copy_(x)
    else:
        to[...] = x
