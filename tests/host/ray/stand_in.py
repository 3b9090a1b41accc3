"""What of Ray 2.60 the room `stretto.ray` stands on, for where Ray is not installed.

Its store is a folder. `test_ray.py` compares it with Ray, where that is there.
"""

from __future__ import annotations

import os
import sys
from abc import ABCMeta, abstractmethod
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from urllib.parse import quote


class ReduceOp(Enum):
    """As Ray has them."""

    SUM = 0
    PRODUCT = 1
    MIN = 2
    MAX = 3


def options(**values: Any) -> type:
    """Return a class of options with these values."""
    return type("Options", (), values)


AllReduceOptions = options(reduceOp=ReduceOp.SUM)
BarrierOptions = options()
ReduceOptions = options(reduceOp=ReduceOp.SUM, root_rank=0)
AllGatherOptions = options()
BroadcastOptions = options(root_rank=0)
ReduceScatterOptions = options(reduceOp=ReduceOp.SUM)
SendOptions = options(dst_rank=0)
RecvOptions = options(src_rank=0)


class BaseGroup(metaclass=ABCMeta):
    """Of ray.util.collective."""

    def __init__(self, world_size, rank, group_name):
        self._world_size, self._rank, self._group_name = world_size, rank, group_name

    rank = property(lambda self: self._rank)
    world_size = property(lambda self: self._world_size)
    group_name = property(lambda self: self._group_name)

    def destroy_group(self):
        raise NotImplementedError

    @classmethod
    def backend(cls):
        raise NotImplementedError

    @classmethod
    @abstractmethod
    def check_backend_availability(cls):
        """Return whether it works."""

    @abstractmethod
    def allreduce(self, tensor, allreduce_options=AllReduceOptions): ...

    @abstractmethod
    def barrier(self, barrier_options=BarrierOptions): ...

    @abstractmethod
    def reduce(self, tensor, reduce_options=ReduceOptions): ...

    @abstractmethod
    def allgather(self, tensor_list, tensor, allgather_options=AllGatherOptions): ...

    @abstractmethod
    def broadcast(self, tensor, broadcast_options=BroadcastOptions): ...

    @abstractmethod
    def reducescatter(
        self, tensor, tensor_list, reducescatter_options=ReduceScatterOptions
    ): ...

    @abstractmethod
    def send(self, tensor, send_options): ...

    @abstractmethod
    def recv(self, tensor, recv_options): ...


class TensorTransportManager(metaclass=ABCMeta):
    """Of ray.experimental."""

    @abstractmethod
    def tensor_transport_backend(self): ...

    @staticmethod
    @abstractmethod
    def is_one_sided(): ...

    @staticmethod
    @abstractmethod
    def can_abort_transport(): ...

    @abstractmethod
    def actor_has_tensor_transport(self, actor): ...

    @abstractmethod
    def extract_tensor_transport_metadata(self, obj_id, rdt_object): ...

    @abstractmethod
    def get_communicator_metadata(self, src_actor, dst_actor, backend=None): ...

    @abstractmethod
    def recv_multiple_tensors(
        self, obj_id, tensor_transport_metadata, communicator_metadata,
        target_buffers=None,
    ): ...  # fmt: skip

    def fetch_multiple_tensors(
        self, obj_id, tensor_transport_metadata, communicator_metadata,
        target_buffers=None,
    ):  # fmt: skip
        raise NotImplementedError

    def wait_fetch_complete(self, fetch_request, timeout=-1):
        raise NotImplementedError

    @abstractmethod
    def send_multiple_tensors(
        self, tensors, tensor_transport_metadata, communicator_metadata
    ): ...

    @abstractmethod
    def garbage_collect(self, obj_id, tensor_transport_meta, tensors): ...

    @abstractmethod
    def abort_transport(self, obj_id, communicator_metadata): ...


@dataclass
class TensorTransportMetadata:
    """Of ray.experimental."""

    tensor_meta: list[Any]
    tensor_device: str | None = None


@dataclass
class FetchRequest:
    """Of ray.experimental."""

    obj_id: str
    tensors: list[Any]


class CommunicatorMetadata:
    """Of ray.experimental."""


class Kept:
    """Ray's store of keys and values, in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def _path(self, key: str) -> Path:
        return self._folder / quote(key, safe="")

    def put(self, key, value, overwrite=True, namespace=None):
        path = self._path(key)
        if overwrite or not path.exists():
            part = path.with_name(f"{os.getpid()}.part")
            part.write_bytes(value.encode() if isinstance(value, str) else value)
            part.replace(path)

    def get(self, key, namespace=None):
        path = self._path(key)
        return path.read_bytes() if path.exists() else None

    def delete(self, key, del_by_prefix=False, namespace=None):
        for path in self._folder.iterdir():
            if path.name.startswith(self._path(key).name):
                path.unlink()


def pretend(folder: Path) -> dict[str, ModuleType]:
    """Have this process take it for Ray; return its modules."""
    kept = Kept(folder)

    def nobody(name):
        raise ValueError(name)

    backends, transports = dict[str, Any](), dict[str, Any]()
    types = {
        k: v for k, v in globals().items() if k.endswith("Options") or k == "ReduceOp"
    }
    registry = SimpleNamespace(is_registered=lambda name: name in backends)
    of_rdt = {
        one.__name__: one
        for one in (CommunicatorMetadata, TensorTransportManager,
                    TensorTransportMetadata, FetchRequest)
    }  # fmt: skip
    said: dict[str, dict[str, Any]] = {
        "ray": {"get_actor": nobody},
        "ray.util": {"get_node_ip_address": lambda: "127.0.0.1"},
        "ray.util.collective": {},
        "ray.util.collective.types": types,
        "ray.util.collective.backend_registry": {
            "_global_registry": registry,
            "register_collective_backend": backends.__setitem__,
        },
        "ray.util.collective.collective_group": {},
        "ray.util.collective.collective_group.base_collective_group": {
            "BaseGroup": BaseGroup
        },
        "ray.experimental": {},
        "ray.experimental.internal_kv": {
            "_internal_kv_put": kept.put, "_internal_kv_get": kept.get,
            "_internal_kv_del": kept.delete,
        },
        "ray.experimental.rdt": of_rdt,
        "ray.experimental.rdt.tensor_transport_manager": of_rdt,
        "ray.experimental.rdt.util": {
            "transport_manager_info": transports,
            "_ensure_default_transports_registered": lambda: None,
            "register_tensor_transport": lambda name, devices, of, data_type: (
                transports.__setitem__(name, (of, devices, data_type))
            ),
        },
    }  # fmt: skip
    made = {}
    for name, what in said.items():
        made[name] = sys.modules[name] = ModuleType(name)
        vars(made[name]).update(what, __path__=[])
        ahead, _, last = name.rpartition(".")
        if ahead:
            setattr(made[ahead], last, made[name])
    return made
