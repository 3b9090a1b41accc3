"""The shapes of vLLM: its device communicator, and its custom all_reduce.

A platform plugin names the first in `get_device_communicator_cls()`:
"stretto.torch.serving.vllm.StrettoDeviceCommunicator". The second stands where
`CustomAllreduce` does. Neither needs vLLM to be installed.
"""

from __future__ import annotations

import logging
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from stretto.errors import CallError
from stretto.torch import operators
from stretto.torch.serving.joining import Joined, PeerAllReduce, joined

_log = logging.getLogger("stretto.torch")
MOST_BYTES = 8 << 20


class StrettoDeviceCommunicator:
    """What vLLM asks of `DeviceCommunicatorBase`, by a communicator of stretto."""

    def __init__(
        self,
        cpu_group: Any,
        device: torch.device | None = None,
        device_group: Any = None,
        unique_name: str = "",
        **unknown: Any,
    ) -> None:
        """Join the group's ranks (collective)."""
        if unknown:
            _log.warning("vLLM passes %s, which is not known here", sorted(unknown))
        self.device = device or torch.device("cpu")
        self.cpu_group, self.device_group = cpu_group, device_group
        self.unique_name = unique_name
        self.rank = dist.get_rank(cpu_group)
        self.world_size = dist.get_world_size(cpu_group)
        self.ranks = dist.get_process_group_ranks(cpu_group)
        self.global_rank = dist.get_rank()
        self.global_world_size = dist.get_world_size()
        self.rank_in_group = dist.get_group_rank(cpu_group, self.global_rank)
        self.is_ep_communicator = "ep" in unique_name
        self.use_all2all = False
        self.all2all_manager: Any = None
        found = joined(cpu_group)
        if found is None:
            raise CallError(
                f"group {unique_name!r} spans several hosts, and this communicator is "
                f"for one; leave such groups to vLLM's own"
            )
        self._joined: Joined | None = found
        self._comm, self._name = found.comm, found.name

    def all_reduce(self, input_: Tensor) -> Tensor:
        """Return the sum, a new tensor."""
        return operators.all_reduce(input_, "sum", self._name)

    def all_gather(self, input_: Tensor, dim: int = -1) -> Tensor:
        """Return everybody's tensors, joined along an axis."""
        return operators.all_gather(input_, self._name, dim=dim)

    def all_gatherv(
        self,
        input_: Tensor | list[Tensor],
        dim: int = 0,
        sizes: list[int] | None = None,
    ) -> Tensor | list[Tensor]:
        """Return everybody's rows, `sizes[r]` of rank r; of each tensor of a list."""
        if dim != 0:
            raise CallError(f"all_gatherv: dim={dim}; want 0, as vLLM has it")
        if isinstance(input_, list):
            return [self._rows(one, sizes) for one in input_]
        return self._rows(input_, sizes)

    def _rows(self, one: Tensor, sizes: list[int] | None) -> Tensor:
        if sizes is None or len(set(sizes)) == 1:
            return operators.all_gather(one, self._name)
        return operators.all_gather_v(one, sizes, self._name)

    def reduce_scatter(self, input_: Tensor, dim: int = -1) -> Tensor:
        """Return this rank's part of the sum, along an axis."""
        return operators.reduce_scatter(input_, "sum", self._name, dim=dim)

    def reduce_scatterv(
        self, input_: Tensor, dim: int = -1, sizes: list[int] | None = None
    ) -> Tensor:
        """Return this rank's `sizes[rank]` places along an axis of the sum."""
        if sizes is None or len(set(sizes)) == 1:
            return self.reduce_scatter(input_, dim)
        turned = input_.movedim(dim, 0).contiguous()
        part = operators.reduce_scatter_v(turned, sizes, "sum", self._name)
        return part.movedim(0, dim).contiguous()

    def gather(self, input_: Tensor, dst: int = 0, dim: int = -1) -> Tensor | None:
        """Return everybody's tensors, joined along an axis, at one rank; else None."""
        turned = input_.movedim(dim, 0)
        whole = operators.gather(turned, dst, self._name)
        if self.rank_in_group != dst:
            return None
        return whole.movedim(0, dim).contiguous()

    def broadcast(self, tensor: Tensor, src: int = 0) -> Tensor:
        """Give everybody the tensor of one rank, in place."""
        return operators.broadcast_(tensor, src, self._name)

    def send(self, tensor: Tensor, dst: int | None = None) -> None:
        """Give a tensor to a rank of the group, by default the next."""
        to = (self.rank_in_group + 1) % self.world_size if dst is None else dst
        self._comm.send(tensor.contiguous(), to)

    def recv(
        self, size: torch.Size, dtype: torch.dtype, src: int | None = None
    ) -> Tensor:
        """Return a tensor that a rank of the group sends, by default the one before."""
        source = (self.rank_in_group - 1) % self.world_size if src is None else src
        out = torch.empty(size, dtype=dtype, device=self.device)
        self._comm.recv(out, source)
        return out

    def destroy(self) -> None:
        """Give the communicator back."""
        left, self._joined = self._joined, None
        if left is not None:
            left.leave()

    def prepare_communication_buffer_for_model(self, model: torch.nn.Module) -> None:
        """Do nothing: there are no buffers of a model's own here."""

    def dispatch_router_logits(
        self,
        hidden_states: Tensor,
        router_logits: Tensor,
        is_sequence_parallel: bool = False,
        extra_tensors: list[Tensor] | None = None,
    ) -> Any:
        """Return what came: experts are not divided by this communicator."""
        return _all_of(hidden_states, router_logits, extra_tensors)

    def dispatch(self, hidden_states: Tensor, *given: Any, **options: Any) -> Any:
        """Return what came, in the forms that vLLM has had."""
        rest = [*given, *(v for v in options.values() if isinstance(v, Tensor))]
        tensors = [one for one in rest if isinstance(one, Tensor)]
        extra = options.get("extra_tensors")
        return _all_of(hidden_states, *tensors, extra)

    def combine(
        self, hidden_states: Tensor, is_sequence_parallel: bool = False
    ) -> Tensor:
        """Return what came."""
        return hidden_states


def _all_of(*given: Any) -> tuple[Any, ...]:
    return given[:-1] if given[-1] is None else given


class CustomAllreduce(PeerAllReduce):
    """What vLLM asks of its all_reduce by peer memory."""

    def __init__(
        self,
        group: Any,
        device: int | str | torch.device,
        max_size: int = MOST_BYTES,
        symm_mem_enabled: bool = False,
        **unknown: Any,
    ) -> None:
        """Join the group's ranks (collective); `disabled` says that it cannot be."""
        super().__init__(group, max_size)
        self.max_size = max_size
        self.device = torch.device("cuda", device) if type(device) is int else device
        self.fully_connected = not self.disabled

    def finalize_p2p(self) -> None:
        """Do nothing: memory is shared at the first call."""

    def all_reduce(
        self, inp: Tensor, *, out: Tensor | None = None, registered: bool = False
    ) -> Tensor:
        """Return the sum, in `out` or a new tensor."""
        return operators.all_reduce(inp, "sum", self._name, out=out)

    def custom_all_reduce(self, input: Tensor) -> Tensor | None:  # noqa: A002
        """Return the sum, a new tensor, or None when another way has to be taken."""
        if not self.should_custom_ar(input):
            return None
        return operators.all_reduce(input, "sum", self._name)

    def register_graph_buffers(self) -> None:
        """Do nothing: graphs need not exchange addresses."""
