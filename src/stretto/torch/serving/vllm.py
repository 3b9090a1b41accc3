"""The shapes of vLLM: its device communicator, and its custom all_reduce.

The first is for a platform of one's own, the second stands where `CustomAllreduce`
does. Neither needs vLLM to be installed; `.vllm_engine` is for vLLM as it is.
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
from stretto.torch.serving.vllm_experts import manager_for

_log = logging.getLogger("stretto.torch")


class StrettoDeviceCommunicator:
    """What vLLM asks of `DeviceCommunicatorBase`, by a communicator of stretto."""

    def __init__(
        self,
        cpu_group: Any,
        device: torch.device | None = None,
        device_group: Any = None,
        unique_name: str = "",
        global_ranks: list[int] | None = None,
        global_world_size: int | None = None,
        use_all2all: bool = False,
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
        self.is_ep_communicator = unique_name.split(":")[0] == "ep"
        self.use_all2all = self.is_ep_communicator and use_all2all
        self.all2all_manager: Any = None
        found = joined(cpu_group)
        if found is None:
            raise CallError(
                f"group {unique_name!r} spans several hosts, and this communicator is "
                f"for one; leave such groups to vLLM's own"
            )
        self._joined: Joined | None = found
        self._comm, self._name = found.comm, found.name
        if self.use_all2all:
            self.all2all_manager = manager_for(cpu_group)

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

    def reduce_scatterv_into_output(
        self,
        input_: Tensor,
        output: Tensor,
        dim: int = -1,
        sizes: list[int] | None = None,
    ) -> Tensor:
        """Return `output`, filled with this rank's places of the sum."""
        return output.copy_(self.reduce_scatterv(input_, dim, sizes))

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
        manager, self.all2all_manager = self.all2all_manager, None
        if manager is not None:
            manager.destroy()
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
        """Return everybody's tokens and logits; what came, if there is no manager."""
        if self.all2all_manager is not None:
            return self.all2all_manager.dispatch_router_logits(
                hidden_states, router_logits, is_sequence_parallel, extra_tensors
            )
        return _all_of(hidden_states, router_logits, extra_tensors)

    def dispatch(self, hidden_states: Tensor, *given: Any, **options: Any) -> Any:
        """Return everybody's tokens; what came, where there is no manager.

        In the forms that vLLM has had.
        """
        if self.all2all_manager is not None:
            return self.all2all_manager.dispatch(hidden_states, *given, **options)
        rest = [*given, *options.values()]
        tensors = [one for one in rest if isinstance(one, Tensor)]
        lists = [one for one in rest if isinstance(one, list)]
        return _all_of(hidden_states, *tensors, lists[0] if lists else None)

    def combine(
        self, hidden_states: Tensor, is_sequence_parallel: bool = False
    ) -> Tensor:
        """Return this rank's sums; what came, where there is no manager."""
        if self.all2all_manager is not None:
            summed: Tensor = self.all2all_manager.combine(
                hidden_states, is_sequence_parallel
            )
            return summed
        return hidden_states

    def combine_into_output(
        self, hidden_states: Tensor, output: Tensor, is_sequence_parallel: bool = False
    ) -> Tensor:
        """Return `output`, filled with what came."""
        return output.copy_(self.combine(hidden_states, is_sequence_parallel))

    def allocate_combine_input(
        self,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        device: torch.device,
        is_sequence_parallel: bool = False,
    ) -> Tensor | None:
        """Return None: no tensor is better placed here than another."""
        return None

    def get_symmetric_memory_buffer(
        self,
        role: str,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        device: torch.device,
    ) -> Tensor | None:
        """Return None, as `allocate_combine_input`."""
        return None


def _all_of(*given: Any) -> tuple[Any, ...]:
    return given[:-1] if given[-1] is None else given


class CustomAllreduce(PeerAllReduce):
    """What vLLM asks of its all_reduce by peer memory."""

    def __init__(
        self,
        group: Any,
        device: int | str | torch.device,
        max_size: int | None = None,
        *sizes: Any,
        symm_mem_enabled: bool = False,
        **unknown: Any,
    ) -> None:
        """Join the group's ranks (collective); `disabled` says that it cannot be."""
        super().__init__(group, max_size)
        self.device = torch.device("cuda", device) if type(device) is int else device
        self.fully_connected = not self.disabled

    def finalize_p2p(self) -> None:
        """Do nothing: memory is shared at the first call."""

    def all_reduce(
        self, inp: Tensor, *, out: Tensor | None = None, registered: bool = False
    ) -> Tensor:
        """Return the sum, in `out` or a new tensor."""
        return operators.all_reduce(inp, "sum", self._name, out=out)

    def custom_all_gather(self, inp: Tensor) -> Tensor | None:
        """Return everybody's rows, or None when another way has to be taken."""
        if not self.should_custom_ar(inp):
            return None
        return operators.all_gather(inp.contiguous(), self._name)

    def custom_reduce_scatter(self, inp: Tensor) -> Tensor | None:
        """Return this rank's rows of the sum, or None as `custom_all_gather`."""
        if not self.should_custom_ar(inp) or inp.shape[0] % self.world_size:
            return None
        return operators.reduce_scatter(inp.contiguous(), "sum", self._name)

    def custom_all_reduce(self, input: Tensor) -> Tensor | None:  # noqa: A002
        """Return the sum, a new tensor, or None when another way has to be taken."""
        if not self.should_custom_ar(input):
            return None
        return operators.all_reduce(input, "sum", self._name)

    def register_graph_buffers(self) -> None:
        """Do nothing: graphs need not exchange addresses."""
