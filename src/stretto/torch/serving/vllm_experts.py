"""What vLLM asks of an `all2all_manager`: tokens of all ranks, and their sums back.

vLLM's default for experts on several ranks: every rank gets all tokens (all_gather),
and sums go back (reduce_scatter). Which ranks, and how many tokens each has, vLLM says
itself, at each call. With two ranks this moves the bytes that a dispatch would; for
more there is DeepEP's interface (`stretto.experts.deep_ep`), which vLLM's own managers
"deepep_high_throughput" and "deepep_low_latency" call.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from stretto.errors import CallError, MissingExtraError

__all__ = ["GatheringManager", "manager_for"]

_GATHERED = ("naive", "allgather_reducescatter")
_OF_DEEP_EP = {
    "deepep_high_throughput": "DeepEPHTAll2AllManager",
    "deepep_low_latency": "DeepEPLLAll2AllManager",
}


def _of_vllm(module: str, name: str) -> Any:
    try:
        return getattr(importlib.import_module(f"vllm.{module}"), name)
    except (ImportError, AttributeError) as e:
        raise MissingExtraError(f"vLLM's {name}: {e}; install vllm") from e


def manager_for(cpu_group: Any) -> Any:
    """Return a manager as vLLM's configuration asks for."""
    config = _of_vllm("config", "get_current_vllm_config_or_none")()
    backend = "naive" if config is None else config.parallel_config.all2all_backend
    if backend in _GATHERED:
        return GatheringManager(cpu_group)
    if backend in _OF_DEEP_EP:
        own = _of_vllm("distributed.device_communicators.all2all", _OF_DEEP_EP[backend])
        return own(cpu_group)
    raise CallError(
        f"all2all_backend={backend!r}; want one of {[*_GATHERED, *_OF_DEEP_EP]}"
    )


class GatheringManager:
    """Experts by all_gather and reduce_scatter, over communicators that vLLM has."""

    def __init__(self, cpu_group: Any, tcp_store_group: Any = None) -> None:
        """Know vLLM's groups, which are there by now."""
        self.cpu_group, self.tcp_store_group = cpu_group, tcp_store_group
        self.dp_group = _of_vllm("distributed", "get_dp_group")()
        self.tp_group = _of_vllm("distributed", "get_tp_group")()
        self.dp_rank = self.dp_group.rank_in_group
        self.dp_world_size = self.dp_group.world_size
        self.rank, self.world_size = cpu_group.rank(), cpu_group.size()
        self.internode = False
        self.support_fault_tolerance = False

    def dispatch_router_logits(
        self, hidden_states: Tensor, router_logits: Tensor,
        is_sequence_parallel: bool = False, extra_tensors: list[Tensor] | None = None,
    ) -> Any:  # fmt: skip
        """Return everybody's tokens and logits; a list of what else there is."""
        return self._gathered(
            [hidden_states, router_logits], is_sequence_parallel, extra_tensors
        )

    def dispatch(
        self, hidden_states: Tensor, topk_weights: Tensor, topk_ids: Tensor,
        is_sequence_parallel: bool = False, extra_tensors: list[Tensor] | None = None,
    ) -> Any:  # fmt: skip
        """Return everybody's tokens, weights and ids; a list of what else there is."""
        given = [hidden_states, topk_weights, topk_ids]
        return self._gathered(given, is_sequence_parallel, extra_tensors)

    def combine(
        self, hidden_states: Tensor, is_sequence_parallel: bool = False
    ) -> Tensor:
        """Return this rank's tokens of everybody's sums."""
        group, sizes = self._where(len(hidden_states), is_sequence_parallel, whole=True)
        made: Tensor = group.reduce_scatterv(hidden_states, dim=0, sizes=sizes)
        return made

    def combine_into_output(
        self, hidden_states: Tensor, output: Tensor, is_sequence_parallel: bool = False
    ) -> Tensor:
        """Return `output`, filled with what `combine` returns."""
        return output.copy_(self.combine(hidden_states, is_sequence_parallel))

    def _gathered(
        self, given: list[Tensor], in_sequence: bool, extra: list[Tensor] | None
    ) -> tuple[Any, ...]:
        group, sizes = self._where(len(given[0]), in_sequence, whole=False)
        every = group.all_gatherv([*given, *(extra or ())], dim=0, sizes=sizes)
        many = len(given)
        return (*every[:many], *([] if extra is None else [list(every[many:])]))

    def _where(
        self, tokens: int, in_sequence: bool, *, whole: bool
    ) -> tuple[Any, list[int]]:
        """Return the group of a call, and how many tokens each of its ranks has.

        `tokens` are this rank's, or with `whole` those of all.
        """
        group = self.dp_group
        if in_sequence:
            group = _of_vllm("distributed", "get_ep_group")()
        elif self.dp_world_size == 1:
            group = _of_vllm("distributed", "get_pcp_group")()
        if self.dp_world_size == 1:
            each = tokens // group.world_size if whole else tokens
            sizes = [each] * group.world_size
        else:
            about = _of_vllm("forward_context", "get_forward_context")().dp_metadata
            sizes = list(about.get_chunk_sizes_across_dp_rank())
        have = sum(sizes) if whole else sizes[group.rank_in_group]
        if have != tokens or len(sizes) != group.world_size:
            raise CallError(
                f"{tokens} tokens, and vLLM says that ranks have {sizes}; want as many "
                f"sizes as ranks ({group.world_size}), and them to be those of tokens"
            )
        return group, sizes

    # What is asked of any manager, and needs nothing here.

    def get_handle(self, kwargs: dict[str, Any]) -> Any:
        """Refuse: gathering has no handles."""
        raise CallError("get_handle: experts by all_gather have none; want dispatch()")

    def allocate_combine_input(
        self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device,
        is_sequence_parallel: bool = False,
    ) -> Tensor | None:  # fmt: skip
        """Return None: no tensor is better placed here than another."""
        return None

    def set_num_sms(self, num_sms: int) -> None:
        """Do nothing: how many blocks a call has is chosen by measurement."""

    def max_sms_used(self) -> int | None:
        """Return None: it may be all."""
        return None

    def query_active_mask(self) -> Tensor:
        """Return zeros: no rank is left out."""
        return torch.zeros(self.world_size, dtype=torch.int32)

    def query_fault(self) -> Tensor:
        """Return False: a rank that is lost is an error of the call, which names it."""
        return torch.tensor(False)

    def clean_buffers(self) -> None:
        """Do nothing: no call leaves anything that another would read."""

    def checkpoint_prepare(self) -> None:
        """Do nothing: there is no memory of its own."""

    def checkpoint_restore(self) -> None:
        """Do nothing: there is no memory of its own."""

    def stage_ep_size(self) -> None:
        """Do nothing: groups are vLLM's."""

    def commit_ep_size(self) -> None:
        """Do nothing: groups are vLLM's."""

    @contextlib.contextmanager
    def mask_remote_ranks(self) -> Iterator[None]:
        """Be around calls that are this rank's alone."""
        yield

    def destroy(self) -> None:
        """Do nothing: communicators are vLLM's groups' own."""
