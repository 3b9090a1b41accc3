"""stretto inside vLLM as it is: `VLLM_PLUGINS=stretto vllm serve ...`.

vLLM asks the entry point "stretto" of its group `vllm.platform_plugins` for a platform,
in every process of its own. Ours is its CUDA platform, but for the class that it names
for communicators; and that is vLLM's own class with the verbs of tensor parallelism
replaced, since capturing a graph asks for that very class. Both are made when vLLM asks
for them, of the classes that it has.

A group that spans hosts, of one rank, or of other devices keeps vLLM's own ways.
"""

from __future__ import annotations

import functools
import importlib
import logging
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from stretto.errors import MissingExtraError
from stretto.torch import operators
from stretto.torch.serving.joining import Joined, joined

_log = logging.getLogger("stretto.torch")
_PLATFORM = "vllm.platforms.cuda"
_COMMUNICATOR = "vllm.distributed.device_communicators.cuda_communicator"
TYPES = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.int32,
                   torch.int64, torch.uint8, torch.int8})  # fmt: skip
"""What engines reduce and gather; anything else goes vLLM's way."""


class OverCuda:
    """The verbs that stretto has instead of the class that it stands before.

    Both stand in one class; what is not ours to do is the other's, by `super()`.
    """

    device: torch.device
    cpu_group: Any
    unique_name: str
    world_size: int
    rank_in_group: int
    _joined: Joined | None = None
    _name = ""

    def __init__(self, *given: Any, **options: Any) -> None:
        """Let vLLM make its own; then join the ranks of the group (collective)."""
        super().__init__(*given, **options)
        if self.world_size < 2 or not _ours(self.cpu_group, self.device):
            return
        self._joined = joined(self.cpu_group)
        if self._joined is None:
            _log.info("%s spans hosts: vLLM's own communicator", self.unique_name)
            return
        self._name = self._joined.name
        _log.info("%s: collectives by stretto", self.unique_name)

    def _takes(self, *tensors: Any) -> bool:
        """Return whether a call is ours; alike on all ranks, as their tensors are."""
        return bool(self._name) and all(
            isinstance(x, Tensor) and x.dtype in TYPES and x.numel() for x in tensors
        )

    def all_reduce(self, input_: Tensor) -> Tensor:
        """Return the sum, a new tensor."""
        if not self._takes(input_):
            return super().all_reduce(input_)  # type: ignore[misc]
        return operators.all_reduce(input_.contiguous(), "sum", self._name)

    def all_gather(self, input_: Tensor, dim: int = -1) -> Tensor:
        """Return everybody's tensors, joined along an axis."""
        if not self._takes(input_):
            return super().all_gather(input_, dim)  # type: ignore[misc]
        return operators.all_gather(input_, self._name, dim=dim)

    def reduce_scatter(self, input_: Tensor, dim: int = -1) -> Tensor:
        """Return this rank's part of the sum, along an axis."""
        if not self._takes(input_) or input_.shape[dim] % self.world_size:
            return super().reduce_scatter(input_, dim)  # type: ignore[misc]
        return operators.reduce_scatter(input_, "sum", self._name, dim=dim)

    def all_gatherv(
        self,
        input_: Tensor | list[Tensor],
        dim: int = 0,
        sizes: list[int] | None = None,
    ) -> Tensor | list[Tensor]:
        """Return everybody's rows, `sizes[r]` of rank r; of each tensor of a list."""
        several = isinstance(input_, list)
        parts = input_ if isinstance(input_, list) else [input_]
        if dim or not self._sized(sizes) or not self._takes(*parts):
            return super().all_gatherv(input_, dim, sizes)  # type: ignore[misc]
        whole = [self._rows(one, sizes) for one in parts]
        return whole if several else whole[0]

    def reduce_scatterv(
        self, input_: Tensor, dim: int = -1, sizes: list[int] | None = None
    ) -> Tensor:
        """Return this rank's `sizes[rank]` places along an axis of the sum."""
        if not self._sized(sizes) or not self._takes(input_):
            return super().reduce_scatterv(input_, dim, sizes)  # type: ignore[misc]
        if sizes is None or len(set(sizes)) == 1:
            return self.reduce_scatter(input_, dim)
        turned = input_.movedim(dim, 0).contiguous()
        part = operators.reduce_scatter_v(turned, sizes, "sum", self._name)
        return part.movedim(0, dim).contiguous()

    def custom_all_gather(self, input_: Tensor) -> Tensor | None:
        """Return everybody's rows; None: another way has to be taken."""
        if self._takes(input_):
            return operators.all_gather(input_.contiguous(), self._name)
        own = getattr(super(), "custom_all_gather", None)
        return None if own is None else own(input_)

    def custom_reduce_scatter(self, input_: Tensor) -> Tensor | None:
        """Return this rank's rows of the sum; None: another way has to be taken."""
        if self._takes(input_) and not input_.shape[0] % self.world_size:
            return operators.reduce_scatter(input_.contiguous(), "sum", self._name)
        own = getattr(super(), "custom_reduce_scatter", None)
        return None if own is None else own(input_)

    def destroy(self) -> None:
        """Give both communicators back."""
        left, self._joined, self._name = self._joined, None, ""
        super().destroy()  # type: ignore[misc]
        if left is not None:
            left.leave()

    def _sized(self, sizes: list[int] | None) -> bool:
        """Return whether every rank has rows; a rank without asks for vLLM's way."""
        return sizes is None or all(sizes)

    def _rows(self, one: Tensor, sizes: list[int] | None) -> Tensor:
        if sizes is None or len(set(sizes)) == 1:
            return operators.all_gather(one.contiguous(), self._name)
        return operators.all_gather_v(one.contiguous(), sizes, self._name)


def _ours(group: Any, device: torch.device) -> bool:
    """Return whether a group is one of torch.distributed's, of GPUs."""
    try:
        dist.get_process_group_ranks(group)
    except (KeyError, TypeError, ValueError):
        return False  # what vLLM calls stateless
    return bool(device.type == "cuda")


def _of_vllm(module: str, name: str) -> type:
    try:
        return getattr(importlib.import_module(module), name)  # type: ignore[no-any-return]
    except (ImportError, AttributeError) as e:
        raise MissingExtraError(f"vLLM's {name}: {e}; install vllm for CUDA") from e


@functools.cache
def communicator_class() -> type:
    """Return vLLM's communicator for CUDA, with our verbs before its own."""
    base = _of_vllm(_COMMUNICATOR, "CudaCommunicator")
    return type("StrettoCudaCommunicator", (OverCuda, base), {"__module__": __name__})


@functools.cache
def platform_class() -> type:
    """Return vLLM's CUDA platform, which names our communicator."""
    base = _of_vllm(_PLATFORM, "CudaPlatform")

    def get_device_communicator_cls(cls: type) -> str:
        return f"{__name__}.StrettoCudaCommunicator"

    named: Any = classmethod(get_device_communicator_cls)
    own = {"__module__": __name__, "get_device_communicator_cls": named}
    return type("StrettoPlatform", (base,), own)


def __getattr__(name: str) -> Any:
    """Return a class, made when vLLM asks for it."""
    made = {
        "StrettoPlatform": platform_class,
        "StrettoCudaCommunicator": communicator_class,
    }
    if name in made:
        return made[name]()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
