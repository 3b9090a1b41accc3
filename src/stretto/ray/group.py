"""Groups of `ray.util.collective`: each is a communicator, met by Ray's own store."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import ray
import torch
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
from stretto.ray.named import NAME
from stretto.runtime.calls import connect_on
from stretto.torch import calls
from stretto.torch.tensors import read, written

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

    def delete_key(self, key: str) -> None:
        """Remove a text."""
        internal_kv._internal_kv_del(self._prefix + key)

    def clear(self) -> None:
        """Remove all texts."""
        internal_kv._internal_kv_del(self._prefix, del_by_prefix=True)


def _incarnation(name: str) -> str:
    """Return what sets a group apart from others that had its name, if Ray knows it."""
    with suppress(ValueError):  # it was declared by the driver, for these actors
        return str(ray.get_actor(f"info_{name}")._actor_id.hex())
    return "alone"


class RayGroup(BaseGroup):  # type: ignore[misc]
    """A group of actors, as Ray calls it: calls of torch.distributed, on its store.

    Arrays are PyTorch's, NumPy's or CuPy's. Results come in place.
    """

    def __init__(self, world_size: int, rank: int, group_name: str) -> None:
        """Meet the others: all of them come, or it is said who did not."""
        super().__init__(world_size, rank, group_name)
        store = RayStore(group_name, _DEADLINE_S)
        try:
            self._comm = connect_on(store, rank, world_size, deadline_s=_DEADLINE_S)
        except BaseException:
            store.clear()  # the next of this name begins anew
            raise
        if rank == 0:  # all have read it: they are here
            store.clear()
        self._comm.barrier()  # before another of this name begins

    @classmethod
    def backend(cls) -> str:
        """Return the name by which Ray knows it."""
        return NAME

    @classmethod
    def check_backend_availability(cls) -> bool:
        """Return whether it works here: it does, or importing it has said why not."""
        return True

    def destroy_group(self) -> None:
        """End it."""
        self._comm.close()

    def allreduce(self, tensor: Any, allreduce_options: Any = AllReduceOptions) -> None:
        """Combine everybody's tensor, in place."""
        calls.all_reduce(
            self._comm, _target(tensor), _NAMES[allreduce_options.reduceOp]
        )

    def barrier(self, barrier_options: Any = BarrierOptions) -> None:
        """Return when all ranks have come."""
        self._comm.barrier()

    def reduce(self, tensor: Any, reduce_options: Any = ReduceOptions) -> None:
        """Combine everybody's tensor in the root's."""
        root, name = reduce_options.root_rank, _NAMES[reduce_options.reduceOp]
        x = _target(tensor) if self.rank == root else _tensor(_one(tensor))
        calls.reduce(self._comm, x, root, name)

    def broadcast(self, tensor: Any, broadcast_options: Any = BroadcastOptions) -> None:
        """Give everybody the root's tensor."""
        root = broadcast_options.root_rank
        x = _tensor(_one(tensor)) if self.rank == root else _target(tensor)
        calls.broadcast(self._comm, x, root)

    def allgather(
        self, tensor_list: Any, tensor: Any, allgather_options: Any = AllGatherOptions
    ) -> None:
        """Give everybody everybody's tensor, each into its own."""
        outs, x = [_target([out]) for out in _one(tensor_list)], _tensor(_one(tensor))
        self._check(outs, x)
        calls.all_gather(self._comm, outs, x)

    def reducescatter(
        self, tensor: Any, tensor_list: Any,
        reducescatter_options: Any = ReduceScatterOptions,
    ) -> None:  # fmt: skip
        """Combine everybody's lists, and give each rank the one of its place."""
        out, parts = _target(tensor), [_tensor(part) for part in _one(tensor_list)]
        self._check(parts, out)
        name = _NAMES[reducescatter_options.reduceOp]
        calls.reduce_scatter(self._comm, out, parts, name)

    def send(self, tensor: Any, send_options: Any) -> None:
        """Give a rank a tensor that it asks for."""
        self._comm.send(read(_tensor(_one(tensor))), send_options.dst_rank)

    def recv(self, tensor: Any, recv_options: Any) -> None:
        """Take a tensor that a rank sends."""
        with written(_target(tensor), filled=False) as x:
            self._comm.recv(x, recv_options.src_rank)

    def _check(self, parts: Sequence[torch.Tensor], like: torch.Tensor) -> None:
        """Raise here, on all ranks alike, what would be an error on some of them."""
        for nth, part in enumerate(parts):
            if part.shape != like.shape:
                raise CallError(
                    f"group {self.group_name}: tensor {nth} of the list has shape "
                    f"{tuple(part.shape)}; want {tuple(like.shape)}, as of the other"
                )


def _one(given: Any) -> Any:
    """Return what Ray wraps in a list: that of the one GPU that an actor has."""
    if len(given) != 1:
        raise CallError(f"{len(given)} tensors of one actor; want one: it has one GPU")
    return given[0]


def _target(given: Any) -> torch.Tensor:
    """Return an array that is written to as a tensor."""
    x = _one(given)
    if isinstance(x, np.ndarray) and not x.flags.writeable:
        raise CallError(
            "an array that may only be read, as those that Ray hands to actors; want "
            "a copy of it"
        )
    return _tensor(x)


def _tensor(x: Any) -> torch.Tensor:
    """Return an array as a tensor of the same memory, of which no gradient is taken."""
    if isinstance(x, torch.Tensor):  # the same object: its calls are known
        return x.detach() if x.requires_grad else x
    if isinstance(x, np.ndarray):
        with warnings.catch_warnings():  # PyTorch warns of what may only be read
            warnings.simplefilter("ignore", UserWarning)
            return torch.from_numpy(x)
    return torch.from_dlpack(x)
