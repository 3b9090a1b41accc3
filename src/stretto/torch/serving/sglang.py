"""The shapes of SGLang: its custom all_reduce, and the communicator proposed for all.

`CustomAllReduceV2` stands where SGLang's class of that name does. `StrettoCommunicator`
has the interface of its `BaseCommunicator`. Neither needs SGLang to be installed.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from stretto.errors import CallError
from stretto.torch import operators
from stretto.torch.serving.joining import PeerAllReduce, joined, usable


class CustomAllReduceV2(PeerAllReduce):
    """What SGLang asks of its all_reduce by peer memory."""

    def __init__(
        self,
        group: Any,
        device: torch.device,
        max_size: int | None = None,
        max_push_size: int | None = None,
        *,
        max_pull_size: int | None = None,
        **unknown: Any,
    ) -> None:
        """Join the group's ranks (collective); `disabled` says that it cannot be.

        `max_size` was `max_pull_size` once, in the same place.
        """
        super().__init__(group, max_pull_size if max_size is None else max_size)
        self.max_pull_size = self.max_size
        self.device = device

    def supports_push(self, *, nbytes: int, num_blocks: int) -> bool:
        """Return False: fusions of SGLang's own write to its staging, not to ours."""
        return False

    def override_shot(self, shot: int | None) -> None:
        """Do nothing: how many steps are taken is chosen by measurement here."""
        if shot not in (None, 1, 2):
            raise CallError(f"override_shot({shot!r}); want None, 1 or 2")

    def custom_all_reduce(self, input: Tensor) -> Tensor:  # noqa: A002
        """Return the sum, a new tensor."""
        return operators.all_reduce(input, "sum", self._name)


class AllReduceMode(enum.Enum):
    """Whether an all_reduce may be in place, or out of it."""

    BOTH = "both"
    INPLACE = "inplace"
    OUTPLACE = "outplace"

    def can_inplace(self) -> bool:
        """Return whether it may be in place."""
        return self is not AllReduceMode.OUTPLACE

    def can_outplace(self) -> bool:
        """Return whether it may return a new tensor."""
        return self is not AllReduceMode.INPLACE

    def supports(self, inplace: bool | None) -> bool:
        """Return whether a request can be served; None leaves the choice."""
        if inplace is None:
            return True
        return self.can_inplace() if inplace else self.can_outplace()


def _enabled(call: Callable[..., Any]) -> Callable[..., Any]:
    """Let a method raise while its communicator is disabled."""

    @functools.wraps(call)
    def checked(self: Any, *args: Any, **options: Any) -> Any:
        if self.disabled:
            raise RuntimeError(f"{self.name} is disabled")
        return call(self, *args, **options)

    return checked


class StrettoCommunicator:
    """What SGLang asks of any communicator."""

    name = "stretto"

    def __init__(self, world_size: int, disabled: bool = False, *, group: Any) -> None:
        """Join the group's ranks (collective)."""
        self.world_size, self.group = world_size, group
        if dist.get_world_size(group) != world_size:
            raise CallError(
                f"world_size={world_size}, and the group has "
                f"{dist.get_world_size(group)} ranks"
            )
        self._joined = joined(group)
        self._disabled = disabled or self._joined is None
        self._name = "" if self._joined is None else self._joined.name
        self._rank = dist.get_rank(group)

    @property
    def disabled(self) -> bool:
        """Whether nothing may be called now."""
        return self._disabled

    @contextmanager
    def change_state(self, enable: bool) -> Iterator[None]:
        """Be enabled, or disabled, inside a block."""
        before = self._disabled
        self._disabled = not enable or self._joined is None
        try:
            yield
        finally:
            self._disabled = before

    def graph_capture_context(self) -> Any:
        """Return None: capture needs nothing here."""
        return None

    def should_use_custom_op(self) -> bool:
        """Return False: what is called are operators already where code is compiled."""
        return False

    def get_all_reduce_mode(self, input_: Tensor) -> AllReduceMode | None:
        """Return how a tensor can be reduced: both ways."""
        return AllReduceMode.BOTH if usable(input_) else None

    @_enabled
    def all_reduce(self, input_: Tensor, *, inplace: bool | None = None) -> Tensor:
        """Return the sum: `input_` itself when in place, else a new tensor."""
        if inplace:
            return operators.all_reduce_(input_, "sum", self._name)
        return operators.all_reduce(input_, "sum", self._name)

    @_enabled
    def all_gather_into_tensor(
        self, input_: Tensor, *, out: Tensor | None = None
    ) -> Tensor:
        """Return everybody's tensors, joined along the first axis."""
        return operators.all_gather(input_, self._name, out=out)

    @_enabled
    def all_gather(
        self, input_: Tensor, *, out_list: list[Tensor] | None = None
    ) -> list[Tensor]:
        """Return everybody's tensors."""
        whole = operators.all_gather(input_, self._name)
        parts = list(whole.view(self.world_size, *input_.shape).unbind(0))
        if out_list is None:
            return parts
        for out, part in zip(out_list, parts, strict=True):
            out.copy_(part)
        return out_list

    @_enabled
    def reduce_scatter_tensor(
        self, input_: Tensor, *, out: Tensor | None = None
    ) -> Tensor:
        """Return this rank's part of the sum, along the first axis."""
        return operators.reduce_scatter(input_, "sum", self._name, out=out)

    @_enabled
    def reduce_scatter(
        self, input_list: list[Tensor], *, out: Tensor | None = None
    ) -> Tensor:
        """Return the sum of everybody's tensor for this rank."""
        whole = torch.stack(input_list)
        part = operators.reduce_scatter(whole, "sum", self._name)[0]
        return part if out is None else out.copy_(part)

    @_enabled
    def gather(self, input_: Tensor, dst: int, *, dim: int = 0) -> Tensor | None:
        """Return everybody's tensors, joined along an axis, at one rank; else None."""
        whole = operators.gather(input_.movedim(dim, 0), dst, self._name)
        if self._rank != dst:
            return None
        return whole.movedim(0, dim).contiguous()

    def close(self) -> None:
        """Give the communicator back."""
        left, self._joined, self._disabled = self._joined, None, True
        if left is not None:
            left.leave()
