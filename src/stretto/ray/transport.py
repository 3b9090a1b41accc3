"""Tensors between actors: whoever wants one reads it from the actor that has it.

Each process has one engine. What an actor's method returns is shared under the number
of its object, and taken back when Ray has counted its last reference.
"""

from __future__ import annotations

import functools
import secrets
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import ray
import torch
from ray.experimental import internal_kv
from ray.experimental.rdt import (
    CommunicatorMetadata,
    TensorTransportManager,
    TensorTransportMetadata,
)
from ray.experimental.rdt import util as rdt
from ray.experimental.rdt.tensor_transport_manager import FetchRequest

from stretto.errors import TransferError, TransferTimeout
from stretto.ray.named import NAME
from stretto.torch.tensors import flat_bytes
from stretto.transfer import Engine

__all__ = ["RayTransport", "register"]

_MEET_S, _KNOWN_S, _MOVE_S = 60.0, 10.0, 600.0
_SECRET = "stretto/secret"


def register() -> None:
    """Let Ray find it in this process."""
    rdt._ensure_default_transports_registered()
    if NAME not in rdt.transport_manager_info:
        rdt.register_tensor_transport(NAME, ["cpu", "cuda"], RayTransport, torch.Tensor)


_lock = threading.Lock()


def _engine() -> Engine:
    """Return this process's engine; those of one cluster know one secret."""
    with _lock:
        return _begun()


@functools.cache
def _begun() -> Engine:
    drawn = secrets.token_hex(32).encode()
    internal_kv._internal_kv_put(_SECRET, drawn, overwrite=False)
    secret = bytes(internal_kv._internal_kv_get(_SECRET))
    host = ray.util.get_node_ip_address()
    listen = f"[{host}]:0" if ":" in host else f"{host}:0"
    name = f"ray-{secrets.token_hex(8)}"
    return Engine(name, job="ray", listen=listen, secret=secret)


@dataclass
class RayTensors(TensorTransportMetadata):  # type: ignore[misc]
    """What an actor says of the tensors of an object: where they are."""

    engine: dict[str, str] = field(default_factory=dict)


@dataclass
class RayReading(FetchRequest):  # type: ignore[misc]
    """Tensors that are being read."""

    begun: Sequence[Any] = ()
    staged: Sequence[tuple[torch.Tensor, torch.Tensor]] = ()
    """Targets with gaps, and the bytes that are theirs."""


class RayTransport(TensorTransportManager):  # type: ignore[misc]
    """See the module; one a process."""

    def __init__(self) -> None:
        """Share nothing yet."""
        self._lock = threading.Lock()
        self._shared: dict[str, list[Any]] = {}
        self._under_way: dict[str, list[Any]] = {}

    @property
    def tensor_transport_backend(self) -> str:
        """Return the name by which Ray knows it."""
        return NAME

    @staticmethod
    def is_one_sided() -> bool:
        """Return whether whoever has a tensor need not take part."""
        return True

    @staticmethod
    def can_abort_transport() -> bool:
        """Return whether what is under way can be given up, and nobody is killed."""
        return True

    def actor_has_tensor_transport(self, actor: Any) -> bool:
        """Return whether an actor can use it: one that cannot says so itself."""
        return True

    def get_communicator_metadata(
        self, src_actor: Any, dst_actor: Any, backend: str | None = None
    ) -> CommunicatorMetadata:
        """Return nothing: an object says where it is."""
        return CommunicatorMetadata()

    # Who has them.

    def extract_tensor_transport_metadata(
        self, obj_id: str, rdt_object: list[torch.Tensor]
    ) -> RayTensors:
        """Share an object's tensors, and say where they are."""
        kinds = {tensor.device.type for tensor in rdt_object}
        if len(kinds) > 1:
            raise TransferError(
                f"object {obj_id}: tensors on {' and '.join(sorted(kinds))}; want all "
                "on one kind of device"
            )
        for device in {tensor.device for tensor in rdt_object if tensor.is_cuda}:
            torch.cuda.current_stream(device).synchronize()  # others read them now
        engine, regions = _engine(), []
        self._withdraw(obj_id)
        for nth, tensor in enumerate(rdt_object):
            if tensor.numel():
                flat = flat_bytes(tensor)
                if flat.is_cuda and flat.data_ptr() != tensor.data_ptr():
                    torch.cuda.current_stream(flat.device).synchronize()
                name = f"{obj_id}/{nth}"
                regions.append(engine.share(flat, name, read_only=True))
        with self._lock:
            self._shared[obj_id] = regions
        return RayTensors(
            tensor_meta=[(tensor.shape, tensor.dtype) for tensor in rdt_object],
            tensor_device=kinds.pop() if kinds else None,
            engine=dict(engine.metadata),
        )

    def garbage_collect(
        self, obj_id: str, tensor_transport_meta: Any, tensors: list[torch.Tensor]
    ) -> None:
        """Share an object's tensors no longer."""
        self._withdraw(obj_id)

    def _withdraw(self, obj_id: str) -> None:
        with self._lock:
            regions = self._shared.pop(obj_id, [])
        for region in regions:
            _engine().unshare(region)

    # Who wants them.

    def recv_multiple_tensors(
        self, obj_id: str, tensor_transport_metadata: Any, communicator_metadata: Any,
        target_buffers: list[torch.Tensor] | None = None,
    ) -> list[torch.Tensor]:  # fmt: skip
        """Read an object's tensors, into those that were given or into new ones."""
        begun = self.fetch_multiple_tensors(
            obj_id, tensor_transport_metadata, communicator_metadata, target_buffers
        )
        return self.wait_fetch_complete(begun)

    def fetch_multiple_tensors(
        self, obj_id: str, tensor_transport_metadata: Any, communicator_metadata: Any,
        target_buffers: list[torch.Tensor] | None = None,
    ) -> RayReading:  # fmt: skip
        """Begin to read them."""
        meta = tensor_transport_metadata
        targets = target_buffers
        if targets is None:
            targets = [
                torch.empty(shape, dtype=dtype, device=meta.tensor_device)
                for shape, dtype in meta.tensor_meta
            ]
        begun, staged = [], []
        peer = _engine().connect(meta.engine).wait(_MEET_S) if targets else None
        for nth, target in enumerate(targets):
            if peer is None or not target.numel():
                continue
            flat = flat_bytes(target)
            if flat.data_ptr() != target.data_ptr():
                staged.append((target, flat))
            if flat.is_cuda:
                torch.cuda.current_stream(flat.device).synchronize()
            begun.append(peer.region(f"{obj_id}/{nth}").wait(_KNOWN_S).get(flat))
        with self._lock:
            self._under_way[obj_id] = begun
        return RayReading(obj_id=obj_id, tensors=targets, begun=begun, staged=staged)

    def wait_fetch_complete(
        self, fetch_request: RayReading, timeout: float = -1
    ) -> list[torch.Tensor]:
        """Return what was read, once it is here."""
        within_s = _MOVE_S if timeout < 0 else timeout
        until = time.monotonic() + within_s
        try:
            for one in fetch_request.begun:
                one.wait(max(0.0, until - time.monotonic()))
        except TransferTimeout as e:
            raise TimeoutError(str(e)) from e  # Ray asks again
        with self._lock:
            self._under_way.pop(fetch_request.obj_id, None)
        for target, flat in fetch_request.staged:
            target.copy_(flat.view(target.dtype).view(target.shape))
        return list(fetch_request.tensors)

    def abort_transport(self, obj_id: str, communicator_metadata: Any) -> None:
        """Give up what is read of an object, if anything is."""
        with self._lock:
            begun = self._under_way.pop(obj_id, [])
        for one in begun:
            one.cancel()

    def send_multiple_tensors(
        self, tensors: Any, tensor_transport_metadata: Any, communicator_metadata: Any
    ) -> None:
        """Send nothing: they are read."""
        raise NotImplementedError("tensors are read by whoever wants them")
